"""How near torch comes to what the device can do: products of matrices, reading memory, a decoder's step with random
weights, and what a captured graph saves. Torch over the arena's memory without a copy.

Peaks are those of the data sheets, dense, without sparsity.
"""

import math
from collections.abc import Callable
from typing import Any

from headrace.benchmarks.gpu_check.check import Figures, Scale, must
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.memory.cuda_arena import CudaArena

PEAKS: dict[str, tuple[float, float]] = {
    "H200": (989e12, 4.8e12),
    "H100 PCIe": (756e12, 2.0e12),
    "H100": (989e12, 3.35e12),
    "A100-SXM4-80GB": (312e12, 2.039e12),
    "A100": (312e12, 1.555e12),
}
"""bfloat16 operations and bytes of memory per second, by a part of the name; the first that fits."""
_ROUNDS = 20


def peak_of(name: str) -> tuple[float, float] | None:
    """None for a device that is not in the table."""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def shares(name: str, flops_per_s: float, bytes_per_s: float) -> Figures:
    """Of the device's peaks; without them where they are not known."""
    figures = {"tflops_per_s": flops_per_s / 1e12, "tb_per_s": bytes_per_s / 1e12}
    peak = peak_of(name)
    if peak is not None:
        figures |= {"share_of_compute": flops_per_s / peak[0], "share_of_bandwidth": bytes_per_s / peak[1]}
    return figures


def products(device: CudaDevice, scale: Scale) -> Figures:
    """A large product in bfloat16 for compute, a copy within the device for memory."""
    torch = _torch()
    side = 8192
    one, other = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_s = _seconds(torch, lambda: torch.matmul(one, other))
    source = torch.empty(scale.copy_bytes * 4, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_s = _seconds(torch, lambda: target.copy_(source))
    return shares(device.name, 2 * side**3 / product_s, 2 * source.numel() / copy_s)


def decoder_step(device: CudaDevice, scale: Scale) -> Figures:
    """One layer stack's decode of few rows reads its weights once: bytes a second against the bandwidth, alone and as
    a captured graph; both give the same bits."""
    del scale
    torch = _torch()
    width, inner, layers, rows = 4096, 14336, 8, 16
    kinds = {"device": "cuda", "dtype": torch.bfloat16}
    weights = [
        [torch.randn(a, b, **kinds) / math.sqrt(a) for a, b in ((width, width), (width, inner), (inner, width))]
        for _ in range(layers)
    ]
    hidden = torch.randn(rows, width, **kinds)

    def step() -> Any:
        x = hidden
        for own, up, down in weights:
            x = x + x @ own
            x = x + torch.nn.functional.silu(x @ up) @ down
            x = x / x.float().pow(2).mean(-1, keepdim=True).sqrt().to(x.dtype)
        return x

    num_bytes = sum(each.numel() * 2 for layer in weights for each in layer)
    alone = step()
    alone_s = _seconds(torch, step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    must(bool(torch.equal(captured, alone)), "a captured step gives other bits than the same step alone")
    graph_s = _seconds(torch, graph.replay)
    figures = {
        "step_ms": alone_s * 1e3,
        "graph_step_ms": graph_s * 1e3,
        "graph_gain": alone_s / graph_s,
        "tb_per_s": num_bytes / graph_s / 1e12,
    }
    peak = peak_of(device.name)
    return figures | ({"share_of_bandwidth": num_bytes / graph_s / peak[1]} if peak else {})


def tensors_over_the_arena(device: CudaDevice, scale: Scale) -> Figures:
    """Torch reads and writes the arena's memory where it lies, also after a granule has gone and come back."""
    del scale
    torch = _torch()
    torch.zeros(1, device="cuda")
    with CudaArena(CudaMemory(device), 4 * CudaMemory(device).granularity_bytes) as arena:
        page = arena.page_bytes
        arena.map_range(0, arena.size_bytes)
        tensor = torch.as_tensor(Interface(arena.address, arena.size_bytes), device="cuda")
        must(tensor.data_ptr() == arena.address, "torch has copied the memory")
        tensor.fill_(3)
        torch.cuda.synchronize()
        arena.release_range(page, page)
        arena.map_range(page, page)
        tensor[page : 2 * page] = 4
        torch.cuda.synchronize()
        must(int(tensor[page].item()) == 4, "a granule that came back does not keep what is written")
        beside = tensor[0].item() == 3 and tensor[2 * page].item() == 3
        must(beside, "granules beside one that went lost their bytes")
        del tensor
    return {"bytes": 4 * page}


class Interface:
    """Memory of the device as arrays of bytes, by numba's CUDA array interface, version 3."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def _seconds(torch: Any, work: Callable[[], object]) -> float:
    """On the device, the middle of some rounds after three to warm up."""
    for _ in range(3):
        work()
    marks = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(_ROUNDS)]
    for start, end in marks:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    taken = sorted(start.elapsed_time(end) / 1000 for start, end in marks)
    return float(taken[len(taken) // 2])


def _torch() -> Any:
    """Raises ImportError where it is not installed."""
    import torch

    if not torch.cuda.is_available():
        raise ImportError("this torch is built without CUDA, or sees no device")
    return torch
