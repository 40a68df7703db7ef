"""Puts a transformers model's experts on demand: out of its modules into host memory, and into places on the device
as its routers ask for them.

It goes through transformers' experts interface (`transformers.integrations.moe`), as attention goes through its own: a
module of experts that uses it calls `_on_demand_forward`, which does what the module's own eager forward does, in the
same order of sums, so that every bit is that of a model with all experts resident. Shared experts, routers and
everything else stay where they are.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from headrace.core.errors import EngineNotReady
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.memory import CudaPages
from headrace.executor.cuda.streams import Event
from headrace.executor.engines.protocol import Float32, Int32
from headrace.executor.event_wait import EventWait
from headrace.executor.experts.cache import ExpertCache
from headrace.executor.experts.copies import ExpertCopies, HostCopies
from headrace.executor.experts.counts import ExpertCounts
from headrace.executor.experts.cuda_copies import CudaCopies
from headrace.executor.experts.store import ExpertLayout, ExpertMemory
from headrace.executor.memory.pinned import AlignedMemory, RegisteredMemory

IMPLEMENTATION = "headrace_on_demand"
_PARTS = ("gate_up_proj", "down_proj")
_FIELD = "executor.resident_experts"


class ExpertsOnDemand:
    """The experts of `model`, `num_slots` of each layer on the device at once. Close it after the model's last step.

    A step's tokens are told apart by topic where `topics` [T] is set before it (see RoutingHistory), and not where it
    is None or has another length than the step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        num_slots: int,
        *,
        ahead: bool = True,
        link_bytes_per_s: float | None = None,
        cuda: CudaDevice | None = None,
        waits: EventWait | None = None,
    ) -> None:
        """Takes the weights out of the model's modules. With `cuda` (and `waits`) places are on that device, through
        page-locked memory, not proved on one; else in the host's, over a link of `link_bytes_per_s` where that is set.

        Raises EngineNotReady where the model has no experts, or some that are not of the known form.
        """
        modules = list(_expert_modules(model))
        if not modules:
            raise EngineNotReady(
                f"{type(model).__name__} has no experts to keep on demand", field=_FIELD, limit="0 for this model"
            )
        first = modules[0]
        for module in modules:
            _check(module, first)
        shapes = {name: tuple(getattr(first, name).shape[1:]) for name in _PARTS}
        dtype: torch.dtype = first.gate_up_proj.dtype
        layout = ExpertLayout(len(modules), first.num_experts, shapes, dtype.itemsize)
        self.num_slots = min(num_slots, layout.num_experts)
        self.num_experts, self.layout = layout.num_experts, layout
        self.topics: Int32 | None = None
        self._top_k = _top_k(model, self.num_slots)
        with ExitStack() as held:
            pages = RegisteredMemory(CudaPages(cuda)) if cuda is not None else AlignedMemory()
            source = held.enter_context(ExpertMemory(pages, layout, layout.num_experts))
            for layer, module in enumerate(modules):
                _take_out(module, source, layer)
            copies: ExpertCopies
            if cuda is not None and waits is not None:
                whole = torch.empty(
                    layout.num_layers * self.num_slots * layout.expert_bytes, dtype=torch.uint8, device="cuda"
                )
                copies = CudaCopies(cuda, source, whole.data_ptr(), self.num_slots, _TorchStream(cuda), waits)
                places = [
                    [_views(whole[begin : begin + layout.expert_bytes], layout, dtype) for begin in begins]
                    for begins in _begins(layout, self.num_slots)
                ]
            else:
                target = held.enter_context(ExpertMemory(AlignedMemory(), layout, self.num_slots))
                copies = HostCopies(source, target, link_bytes_per_s)
                places = [
                    [
                        {name: _array(target, layer, slot, name, dtype) for name in _PARTS}
                        for slot in range(self.num_slots)
                    ]
                    for layer in range(layout.num_layers)
                ]
            held.callback(copies.close)
            self.cache = ExpertCache(
                layout.num_layers, layout.num_experts, self.num_slots, layout.expert_bytes, copies, ahead=ahead
            )
            self._held = held.pop_all()
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _on_demand_forward)
        for layer, module in enumerate(modules):
            module.config._experts_implementation = IMPLEMENTATION
            module.on_demand = self
            module.on_demand_layer, module.on_demand_places = layer, places[layer]

    @property
    def counts(self) -> ExpertCounts:
        """Since the start."""
        return self.cache.counts

    def admit(self, vector: Float32 | None) -> int:
        """A request with this vector joins: its topic, whose experts are fetched where there is time."""
        return self.cache.admit(vector, self._top_k)

    def close(self) -> None:
        """Returns the memory; the model cannot run any more. Harmless when repeated."""
        self._held.close()


def _on_demand_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Takes the place of a module's forward: hidden_states [T, H], top_k_index and top_k_weights [T, K]; [T, H]."""
    on_demand: ExpertsOnDemand = module.on_demand
    topics = on_demand.topics
    if topics is not None and len(topics) != len(hidden_states):
        topics = None
    index = top_k_index.detach().cpu().numpy()  # the host must know who is asked for
    by_place = top_k_index.T
    outputs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for expert, slot in on_demand.cache.in_turn(module.on_demand_layer, index, topics):
        weights = module.on_demand_places[slot]
        place, token = torch.where(by_place == expert)
        inner = module._apply_gate(torch.nn.functional.linear(hidden_states[token], weights["gate_up_proj"]))
        output = torch.nn.functional.linear(inner, weights["down_proj"])
        outputs[expert] = token, output * top_k_weights[token, place, None]
    final = torch.zeros_like(hidden_states)
    for expert in sorted(outputs):  # sums in the order of the module's own forward, whoever came first
        token, output = outputs[expert]
        final.index_add_(0, token, output.to(final.dtype))
    return final


def _expert_modules(model: torch.nn.Module) -> Iterator[Any]:
    """In the order of layers."""
    for module in model.modules():
        if hasattr(module, "num_experts") and all(hasattr(module, name) for name in _PARTS):
            yield module


def _check(module: Any, first: Any) -> None:
    kind = type(module).__name__
    form = {
        "has_gate": True,
        "has_bias": False,
        "is_transposed": False,
        "is_concatenated": True,
        "has_post_expert_norm": False,
    }
    unlike = [name for name, value in form.items() if getattr(module, name, not value) is not value]
    if unlike:
        raise EngineNotReady(
            f"{kind} is not of the form that is kept on demand: {', '.join(unlike)}",
            field=_FIELD,
            limit="0 for this model",
        )
    if any(getattr(module, name).shape != getattr(first, name).shape for name in _PARTS):
        raise EngineNotReady(f"{kind}: layers have experts of different sizes", field=_FIELD, limit="0 for this model")


def _top_k(model: Any, most: int) -> int:
    """Experts a token."""
    return min(most, int(getattr(model.config, "num_experts_per_tok", None) or 1))


def _take_out(module: Any, source: ExpertMemory, layer: int) -> None:
    """Layer by layer, so that no more than one layer's weights are there twice."""
    for name in _PARTS:
        weights: torch.Tensor = getattr(module, name).detach()
        for expert in range(module.num_experts):
            _array(source, layer, expert, name, weights.dtype).copy_(weights[expert])
        setattr(module, name, None)


def _array(memory: ExpertMemory, layer: int, number: int, name: str, dtype: torch.dtype) -> torch.Tensor:
    """Over the bytes where they lie."""
    return torch.frombuffer(memory.part(layer, number, name), dtype=dtype).view(memory.layout.shapes[name])


def _begins(layout: ExpertLayout, num_slots: int) -> Iterator[range]:
    """Where each layer's places begin."""
    layer_bytes = num_slots * layout.expert_bytes
    for layer in range(layout.num_layers):
        yield range(layer * layer_bytes, (layer + 1) * layer_bytes, layout.expert_bytes)


def _views(place: torch.Tensor, layout: ExpertLayout, dtype: torch.dtype) -> Mapping[str, torch.Tensor]:
    return {
        name: place[layout.offset(name) : layout.offset(name) + layout.part_bytes(name)].view(dtype).view(shape)
        for name, shape in layout.shapes.items()
    }


class _TorchStream:
    """Torch's current stream, as copies mark it."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def record(self, event: Event) -> None:
        number = torch.cuda.current_stream().cuda_stream
        self._device.call(self._device.bindings.cuEventRecord, event.number, number)
