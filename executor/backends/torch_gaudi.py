"""Intel Gaudi: lazy mode with HPU graphs, as Intel's documents on inference have it ("Run Inference Using HPU Graphs").

A graph is captured for each shape and replayed; a step's operations begin when `mark_step` says so. Not proved on a
device: the calls and their order are tried on a stand-in.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision
from headrace.executor.backends.catalogue import Backend
from headrace.executor.backends.torch_device import torch_dtype

LAZY_MODE = "PT_HPU_LAZY_MODE"
"""Read when habana_frameworks is imported: 1 gathers operations into graphs, which HPU graphs want."""
_PRECISIONS = (Precision.BF16, Precision.FP32)


class TorchGaudi:
    """Implements TorchDevice."""

    def __init__(self, backend: Backend, index: int, torch: Any, htcore: Any, hpu: Any) -> None:
        self.backend = backend
        self.placement = f"hpu:{index}"
        self._torch, self._htcore, self._hpu = torch, htcore, hpu

    def ready(self, module: Any, precision: Precision, examples: tuple[Any, ...]) -> Callable[..., Any]:
        """Captured with the examples, so that no step of this shape meets the compiler."""
        dtype = torch_dtype(self._torch, precision, self.backend, _PRECISIONS)
        placed = module.to(device=self.placement, dtype=dtype).eval()
        graph: Callable[..., Any] = self._hpu.wrap_in_hpu_graph(placed)
        try:
            graph(*(each.to(self.placement) for each in examples))
            self.end_step()
            self.synchronise()
        except RuntimeError as error:
            raise EngineNotReady(f"{self.backend.name} cannot capture: {' '.join(str(error).split())}") from error
        return graph

    def end_step(self) -> None:
        self._htcore.mark_step()

    def synchronise(self) -> None:
        self._hpu.synchronize()

    def memory_bytes(self) -> tuple[int, int]:
        free, total = self._hpu.mem_get_info(self.placement)
        return int(free), int(total)


def load(backend: Backend, index: int) -> TorchGaudi:
    """Raises EngineNotReady where lazy mode is off, or there is no such device."""
    if os.environ.setdefault(LAZY_MODE, "1") != "1":
        raise EngineNotReady(f"{backend.name}: {LAZY_MODE} is {os.environ[LAZY_MODE]!r}; HPU graphs want 1")
    try:
        htcore = importlib.import_module("habana_frameworks.torch.core")
        hpu = importlib.import_module("habana_frameworks.torch.hpu")
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:  # built for another torch, or without the driver's library
        raise EngineNotReady(f"{backend.name}: {' '.join(str(error).split())}; {backend.how}") from error
    count = hpu.device_count() if hpu.is_available() else 0
    if not 0 <= index < count:
        raise EngineNotReady(f"{backend.name}: no device {index}, the runtime finds {count}")
    return TorchGaudi(backend, index, torch, htcore, hpu)
