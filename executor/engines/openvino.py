"""The CPU's default engine: OpenVINO's paged attention under our own block tables and memory.

Exact bit for bit under the bounds that its spec states, in every precision: who else is in a step does not change a
row, as long as no step has fewer rows than threads want (attention is split over threads below that) and no prefill
chunk has one token (it takes the decode kernel). KV is kept in bf16, or in float32 where products are: a block of one
layer is then whole pages, and chunk borders may fall anywhere. With KV in u8 chunks must end at a block's end, and rows
over one block table spoil it, so that known tokens cannot be replayed bit for bit: that is not exact.
"""

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision
from headrace.executor.engines.candidates import CandidateOutput
from headrace.executor.engines.loading import not_loaded
from headrace.executor.engines.protocol import EngineSpec, Int32, StepPlan
from headrace.executor.hardware.defaults import host
from headrace.executor.memory.host_arena import HostArena
from headrace.executor.memory.layered import LayeredMemory
from headrace.models.repository import ModelEntry

NUM_CANDIDATES = 64
_PROPERTIES: dict[Precision, dict[str, str]] = {
    Precision.INT8: {},  # activations in eight bits beside the weights, the rest as the CPU likes
    Precision.BF16: {"INFERENCE_PRECISION_HINT": "bf16"},
    Precision.FP32: {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"},
}
_GROUP = 64  # vocabulary entries a group in the two-stage top-k
_LOWEST = float(np.finfo(np.float32).min)


class OpenVinoEngine:
    """A decoder in OpenVINO IR. `kv_bytes` is the memory that KV blocks may take; `threads` 0 means all cores.

    Not `exact`, it asks for no bounds, so that steps of few rows are cheaper and answers may depend on their company.
    `kv_precision` is auto, bf16 or u8.
    """

    def __init__(
        self, entry: ModelEntry, *, kv_bytes: int, threads: int = 0, exact: bool = True, kv_precision: str = "auto"
    ) -> None:
        core, cpu = ov.Core(), host().cpu
        num_threads = threads or cpu.num_threads
        kv_type = _kv_type(core, entry, kv_precision)
        try:
            model = core.read_model(entry.graph)
            paged_attention_transformation(model)
            _report_candidates(_keep_wanted_rows(model), model)
            properties = {
                "INFERENCE_NUM_THREADS": num_threads,
                "KV_CACHE_PRECISION": kv_type,
                "PERFORMANCE_HINT": "LATENCY",
                **_PROPERTIES[entry.precision],
            }
            compiled = core.compile_model(model, "CPU", properties)
        except RuntimeError as error:
            raise not_loaded(entry, error) from error
        self._request = compiled.create_infer_request()
        ports = [
            port for port in compiled.inputs if any(".cache" in name or "_cache" in name for name in port.get_names())
        ]
        # shape and type come from the compiled model: a wrong block size is a segmentation fault, not an exception
        shapes = [[dim.get_length() if dim.is_static else -1 for dim in port.get_partial_shape()] for port in ports]
        item_bytes = [port.get_element_type().size for port in ports]
        block_bytes = sum(-int(np.prod(shape)) * size for shape, size in zip(shapes, item_bytes, strict=True))
        block_tokens = min(shape[2] for shape in shapes)  # of keys in u8 there are rows of scales beside the tokens
        num_blocks = kv_bytes // block_bytes
        if num_blocks < 2:
            raise EngineNotReady(
                f"kv_bytes {kv_bytes} holds no two KV blocks of {block_bytes} bytes",
                field="executor.kv_bytes",
                limit=f">= {2 * block_bytes}",
            )
        self._arenas: list[HostArena] = []
        self._caches: list[np.ndarray] = []
        self._tensors: list[ov.Tensor] = []
        for port, (_, *rest), size in zip(ports, shapes, item_bytes, strict=True):
            arena = HostArena(num_blocks * int(np.prod(rest)) * size)
            cache = arena.as_array({1: np.uint8, 2: np.uint16, 4: np.float32}[size], (num_blocks, *rest))
            tensor = ov.Tensor(cache, ov.Shape([num_blocks, *rest]), port.get_element_type())
            self._request.set_tensor(port, tensor)
            self._arenas.append(arena)
            self._caches.append(cache)
            self._tensors.append(tensor)
        self._memory = LayeredMemory(self._arenas, [cache[0].nbytes for cache in self._caches])
        self._closed = False
        self.spec = EngineSpec(
            name="openvino",
            precision=entry.precision,
            vocab_size=entry.info.vocab_size,
            context_tokens=entry.info.context_tokens,
            block_tokens=block_tokens,
            num_blocks=num_blocks,
            kv_bytes_per_block=block_bytes,
            min_rows=num_threads if exact else 1,
            min_chunk_tokens=2 if exact else 1,
            num_candidates=min(NUM_CANDIDATES, entry.info.vocab_size),
            exact=exact and kv_type != "u8",
            chunk_multiple_tokens=block_tokens if kv_type == "u8" else 1,
            extent_blocks=self._memory.extent_blocks,
            architecture=cpu.architecture(num_threads),
        )

    def forward(self, plan: StepPlan) -> CandidateOutput:
        lengths = np.diff(plan.subsequence_begins)
        feeds = {
            "input_ids": plan.token_ids,
            "position_ids": plan.positions,
            "past_lens": plan.past_lens,
            "subsequence_begins": plan.subsequence_begins,
            "block_indices": plan.block_indices,
            "block_indices_begins": plan.block_indices_begins,
            "max_context_len": np.array((plan.past_lens + lengths).max(), np.int32),
            "wanted_tokens": plan.wanted_tokens,
        }
        for name, value in feeds.items():
            self._request.set_tensor(name, ov.Tensor(value, shared_memory=True))  # read where it is
        self._request.infer()
        rows = len(plan.wanted_tokens)
        logits = self._request.get_tensor("logits").data.reshape(rows, -1)
        return CandidateOutput(
            self._request.get_tensor("candidate_ids").data,
            self._request.get_tensor("candidate_logits").data,
            logits,
        )

    def copy_block(self, source: int, target: int) -> None:
        for cache in self._caches:
            cache[target] = cache[source]

    def release_blocks(self, blocks: Int32) -> None:
        self._memory.unmap_blocks(blocks)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            del self._request
            self._tensors.clear()
            self._caches.clear()
            for arena in self._arenas:
                arena.close()


def _kv_type(core: ov.Core, entry: ModelEntry, kv_precision: str) -> str:
    """What KV is stored in. The runtime takes bf16 only where products are in bf16. Raises EngineNotReady."""
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if entry.precision is Precision.BF16 and not has_bf16:
        raise EngineNotReady(
            f"model {entry.info.name}: this CPU does not compute in bf16",
            field="executor.precision",
            limit="fp32, int8",
        )
    whole = "bf16" if has_bf16 and entry.precision is not Precision.FP32 else "f32"
    if kv_precision == "bf16" != whole:
        raise EngineNotReady(
            f"model {entry.info.name}: what computes in float32 keeps KV in float32 or u8, not in bf16",
            field="executor.kv_precision",
            limit="auto, u8",
        )
    return "u8" if kv_precision == "u8" else whole


def _keep_wanted_rows(model: ov.Model) -> ov.Output:
    """Lets only the wanted tokens' hidden states reach the vocabulary-wide head; returns the logits [R, V]."""
    head = model.outputs[0].get_node().input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    wanted = ops.parameter([-1], np.int64, name="wanted_tokens")
    wanted.output(0).set_names({"wanted_tokens"})
    picked = ops.gather(head.input_value(0), wanted, ops.constant(0, dtype=np.int64))
    head.input(0).replace_source_output(picked.output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()
    logits = model.outputs[0]
    logits.get_tensor().set_names({"logits"})
    return logits.get_node().input_value(0)


def _report_candidates(logits: ov.Output, model: ov.Model) -> None:
    """Adds outputs candidate_ids and candidate_logits [R, K]: the most probable tokens, in no order.

    Two stages, since one top-k over the whole vocabulary costs several times as much: the K best entries lie in the K
    groups of greatest maximum.
    """
    vocab = logits.get_partial_shape()[-1].get_length()
    k = min(NUM_CANDIDATES, vocab)
    width = -(-vocab // _GROUP) * _GROUP
    rows = ops.reshape(logits, ops.constant([-1, vocab], dtype=np.int64), False)
    flat = ops.convert(rows, "f32")
    if width > vocab:
        flat = ops.pad(
            flat,
            ops.constant([0, 0], dtype=np.int64),
            ops.constant([0, width - vocab], dtype=np.int64),
            "constant",
            ops.constant(_LOWEST, dtype=np.float32),
        )
    groups = ops.reshape(flat, ops.constant([0, width // _GROUP, _GROUP], dtype=np.int64), True)
    best_groups = ops.topk(
        ops.reduce_max(groups, ops.constant([2], dtype=np.int64), False),
        ops.constant(min(k, width // _GROUP), dtype=np.int32),
        1,
        "max",
        "none",
        index_element_type="i32",
    ).output(1)
    members = ops.reshape(
        ops.gather(groups, best_groups, ops.constant(1, dtype=np.int64), batch_dims=1),
        ops.constant([0, -1], dtype=np.int64),
        True,
    )
    best = ops.topk(members, ops.constant(k, dtype=np.int32), 1, "max", "none", index_element_type="i32")
    place = best.output(1)
    group = ops.gather(
        best_groups,
        ops.divide(place, ops.constant(_GROUP, dtype=np.int32)),
        ops.constant(1, dtype=np.int64),
        batch_dims=1,
    )
    ids = ops.add(
        ops.multiply(group, ops.constant(_GROUP, dtype=np.int32)), ops.mod(place, ops.constant(_GROUP, dtype=np.int32))
    )
    for name, output in (("candidate_ids", ids.output(0)), ("candidate_logits", best.output(0))):
        result = ops.result(output)
        result.output(0).set_names({name})
        model.add_results([result])
    model.validate_nodes_and_infer_types()
