"""A device as a torch engine sees it: where tensors go, how a module is made ready, where a step ends.

Each maker's device stands in a module of its own, loaded by name, since its libraries start a runtime when imported.
"""

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from headrace.core.errors import ConfigError, EngineNotReady
from headrace.core.request import Precision
from headrace.executor.backends.catalogue import CUDA, GAUDI, NEURON, ROCM, TORCH_CPU, Backend
from headrace.executor.backends.presence import Found, is_installed, require

_MODULES = {
    TORCH_CPU.name: "headrace.executor.backends.torch_native",
    CUDA.name: "headrace.executor.backends.torch_native",
    ROCM.name: "headrace.executor.backends.torch_native",
    GAUDI.name: "headrace.executor.backends.torch_gaudi",
    NEURON.name: "headrace.executor.backends.torch_neuron",
}


class TorchDevice(Protocol):
    """One device that torch reaches. From the engine's thread only."""

    @property
    def backend(self) -> Backend: ...

    @property
    def placement(self) -> str:
        """What tensors are sent `to`: cuda:0, hpu:0, cpu."""

    def ready(self, module: Any, precision: Precision, examples: tuple[Any, ...]) -> Callable[..., Any]:
        """The module in a precision and on the device, as something to call with arguments shaped as the `examples`.

        Where the backend has static shapes this is done for each bucket, and the result takes no other. Raises
        EngineNotReady for a precision that the device lacks, and where it cannot be compiled.
        """

    def end_step(self) -> None:
        """All of the step's work has been given: it may begin."""

    def synchronise(self) -> None:
        """Waits for all work, without a bound: for loading and closing."""

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total); (0, 0) where the runtime does not say."""


def load_torch_device(backend: Backend, index: int = 0, found: Found = is_installed) -> TorchDevice:
    """Raises ConfigError where packages are missing or the backend is none of torch, EngineNotReady where there is no
    such device."""
    if backend.name not in _MODULES:
        raise ConfigError(f"{backend.name} does not run on torch")
    require(backend, found)
    device: TorchDevice = importlib.import_module(_MODULES[backend.name]).load(backend, index)
    return device


def torch_dtype(torch: Any, precision: Precision, backend: Backend, offered: tuple[Precision, ...]) -> Any:
    """Torch's type of a precision. Raises EngineNotReady where the device does not compute in it."""
    if precision not in offered:
        names = ", ".join(each.name.lower() for each in offered)
        raise EngineNotReady(
            f"{backend.name} does not compute in {precision.name.lower()}", field="executor.precision", limit=names
        )
    return {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}[precision]
