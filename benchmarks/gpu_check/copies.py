"""Copies between host and device: how fast from page-locked and from ordinary memory, and beside work."""

import ctypes
import mmap
from collections.abc import Callable
from functools import partial

from headrace.benchmarks.gpu_check.check import Figures, Scale, must
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.memory import CudaMemory, CudaPages
from headrace.executor.cuda.streams import Event, Stream
from headrace.executor.cuda.uploads import Uploads
from headrace.executor.event_wait import EventWait
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.memory.pinned import AlignedMemory, HostMemory, LockedMemory, PinnedPool, RegisteredMemory

_ROUNDS = 5
_PAYLOADS = 16


def seconds_of(device: CudaDevice, stream: Stream, work: Callable[[], None]) -> float:
    """What the work takes on the device, between two marks: the best of a few rounds."""
    best = float("inf")
    with Event(device, timed=True) as start, Event(device, timed=True) as end:
        for _ in range(_ROUNDS):
            stream.record(start)
            work()
            stream.record(end)
            stream.synchronise()
            best = min(best, end.seconds_since(start))
    return best


def bandwidth(device: CudaDevice, scale: Scale) -> Figures:
    """GB/s to and from the device, by the kind of host memory; the bytes that went there come back."""
    figures: dict[str, float] = {}
    size = scale.copy_bytes
    pages = CudaPages(device)
    kinds: dict[str, HostMemory] = {
        "locked": LockedMemory(pages),
        "registered": RegisteredMemory(pages),
        "ordinary": AlignedMemory(),
    }
    with CudaArena(CudaMemory(device), size) as arena, Stream(device) as stream:
        arena.map_range(0, size)
        for name, memory in kinds.items():
            with PinnedPool(memory, 2, size) as pool, pool.buffer() as out, pool.buffer() as back:
                out[: len(name)] = name.encode()
                out[size - 1] = 77
                source, target = _address(out), _address(back)
                to_s = seconds_of(device, stream, partial(stream.to_device, arena.address, source, size))
                from_s = seconds_of(device, stream, partial(stream.to_host, target, arena.address, size))
                must(back[: len(name)] == name.encode() and back[size - 1] == 77, f"{name}: other bytes came back")
                del out, back
            figures[f"{name}_to_device_gb_per_s"] = size / max(to_s, 1e-9) / 1e9
            figures[f"{name}_to_host_gb_per_s"] = size / max(from_s, 1e-9) / 1e9
    must(
        figures["locked_to_device_gb_per_s"] >= figures["ordinary_to_device_gb_per_s"] * 0.9,
        "page-locked memory is slower than ordinary memory",
    )
    return figures


def overlap(device: CudaDevice, scale: Scale) -> Figures:
    """Payloads through one place and through two, each read by work as long as its copy: two hide the copies."""
    size = max(mmap.PAGESIZE, scale.copy_bytes // 16)
    payload = bytes([5]) * size
    taken: dict[int, float] = {}
    with Stream(device) as compute:
        for num_places in (1, 2):
            memory = CudaMemory(device)
            step = -(-size // memory.granularity_bytes) * memory.granularity_bytes
            work_bytes = step * 32
            with (
                PinnedPool(LockedMemory(CudaPages(device)), num_places, size) as pool,
                CudaArena(memory, step * num_places + work_bytes) as arena,
            ):
                arena.map_range(0, arena.size_bytes)
                places = [arena.address + place * step for place in range(num_places)]
                work = arena.address + num_places * step
                waits = EventWait(lambda wait: None)
                with (
                    Uploads(device, pool, places, compute, waits) as uploads,
                    Event(device, timed=True) as start,
                    Event(device, timed=True) as end,
                ):
                    compute.record(start)
                    for _ in range(_PAYLOADS):
                        with uploads.put(payload):
                            compute.fill(work, 1, work_bytes)
                    compute.record(end)
                    compute.synchronise()
                    taken[num_places] = end.seconds_since(start)
    return {"one_place_s": taken[1], "two_places_s": taken[2], "gain": taken[1] / max(taken[2], 1e-12)}


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_uint8.from_buffer(buffer))
