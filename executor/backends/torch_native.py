"""Devices that torch serves by itself: the CPU, NVIDIA's through CUDA, AMD's through ROCm (where torch calls HIP by
CUDA's names). Not proved on an AMD device."""

from collections.abc import Callable
from typing import Any

import torch

from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision
from headrace.executor.backends.catalogue import ROCM, Backend
from headrace.executor.backends.torch_device import torch_dtype
from headrace.executor.hardware.device import DeviceKind

_PRECISIONS = (Precision.BF16, Precision.FP16, Precision.FP32)


class TorchNative:
    """Implements TorchDevice."""

    def __init__(self, backend: Backend, placement: str) -> None:
        self.backend = backend
        self.placement = placement

    @property
    def _on_cpu(self) -> bool:
        return self.backend.kind is DeviceKind.CPU

    def ready(self, module: Any, precision: Precision, examples: tuple[Any, ...]) -> Callable[..., Any]:
        """Any shape may follow. Graphs are the engine's own, over buckets of its choice."""
        dtype = torch_dtype(torch, precision, self.backend, _PRECISIONS)
        placed: Callable[..., Any] = module.to(device=self.placement, dtype=dtype).eval()
        return placed

    def end_step(self) -> None:
        """Nothing: work begins as it is given."""

    def synchronise(self) -> None:
        if not self._on_cpu:
            torch.cuda.synchronize(self.placement)

    def memory_bytes(self) -> tuple[int, int]:
        if self._on_cpu:
            return 0, 0
        free, total = torch.cuda.mem_get_info(self.placement)
        return int(free), int(total)


def load(backend: Backend, index: int) -> TorchNative:
    """Raises EngineNotReady where torch's build is another's, or there is no such device."""
    if backend.kind is DeviceKind.CPU:
        return TorchNative(backend, "cpu")
    hip = getattr(torch.version, "hip", None)
    if (backend is ROCM) != bool(hip):
        built = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
        raise EngineNotReady(f"{backend.name}: torch {torch.__version__} is built for {built}; {backend.how}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not 0 <= index < count:
        raise EngineNotReady(f"{backend.name}: no device {index}, torch finds {count}")
    return TorchNative(backend, f"cuda:{index}")
