"""AWS Neuron: modules compiled ahead of time for one shape each, by torch-neuronx's tracing API.

`torch_neuronx.trace` compiles on the host's cores (minutes for a large module), and the result runs on NeuronCores. Not
proved on a device: the calls and their options are tried on a stand-in.
"""

import importlib
from collections.abc import Callable
from typing import Any

from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision
from headrace.executor.backends.catalogue import Backend
from headrace.executor.backends.torch_device import torch_dtype

COMPILER_ARGS = ("--model-type=transformer", "--auto-cast=none")
"""Of neuronx-cc. The precision is the module's own: nothing is cast behind its back."""
_PRECISIONS = (Precision.BF16, Precision.FP16, Precision.FP32)


class TorchNeuron:
    """Implements TorchDevice. Tensors stay on the host: the traced module takes them in and gives them back."""

    placement = "cpu"

    def __init__(self, backend: Backend, core: int, torch: Any, neuronx: Any) -> None:
        self.backend = backend
        self._core, self._torch, self._neuronx = core, torch, neuronx

    def ready(self, module: Any, precision: Precision, examples: tuple[Any, ...]) -> Callable[..., Any]:
        """Compiled for the examples' shapes, then put on the core."""
        dtype = torch_dtype(self._torch, precision, self.backend, _PRECISIONS)
        placed = module.to(dtype=dtype).eval()
        try:
            traced: Callable[..., Any] = self._neuronx.trace(placed, examples, compiler_args=list(COMPILER_ARGS))
            self._neuronx.move_trace_to_device(traced, self._core)
        except RuntimeError as error:
            raise EngineNotReady(f"{self.backend.name} cannot compile: {' '.join(str(error).split())}") from error
        return traced

    def end_step(self) -> None:
        """Nothing: a call returns when it is done."""

    def synchronise(self) -> None:
        """Nothing, likewise."""

    def memory_bytes(self) -> tuple[int, int]:
        """The runtime does not say; `neuron-ls` tells a device's whole."""
        return 0, 0


def load(backend: Backend, index: int) -> TorchNeuron:
    """`index` is that of a NeuronCore. Raises EngineNotReady where the packages do not go together."""
    try:
        neuronx = importlib.import_module("torch_neuronx")
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise EngineNotReady(f"{backend.name}: {' '.join(str(error).split())}; {backend.how}") from error
    if index < 0:
        raise EngineNotReady(f"{backend.name}: no NeuronCore {index}")
    return TorchNeuron(backend, index, torch, neuronx)
