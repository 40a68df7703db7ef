"""What a process has of the driver: devices, contexts and which is current in a thread, and how calls answer."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from headrace.executor.cuda.fake import values
from headrace.executor.cuda.fake.host import Pages
from headrace.executor.cuda.fake.memory import Memory
from headrace.executor.cuda.fake.values import Failure, Limits, Result, require
from headrace.executor.cuda.fake.work import Work

CONTEXT_BASE = 1000
_MAY_RUN_OUT = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemHostAlloc"}


def answers(call: Callable[..., Any]) -> Any:
    """What the call returns goes behind CUDA_SUCCESS; a Failure is its result."""

    @functools.wraps(call)
    def answered(self: "Process", *arguments: Any) -> tuple[Any, ...]:
        name = call.__name__
        self.calls.append(name)
        try:
            require(self.initialised or name == "cuInit", Result.CUDA_ERROR_NOT_INITIALIZED)
            whole = self.broken is None or name.startswith(("cuCtx", "cuDevice"))
            require(whole, Result.CUDA_ERROR_ILLEGAL_ADDRESS)
            if self.limits.call_s:
                self.work.run_to(self.work.now_s + self.limits.call_s)
            if self.fails_after is not None and name in _MAY_RUN_OUT:
                require(self.fails_after > 0, Result.CUDA_ERROR_OUT_OF_MEMORY)
                self.fails_after -= 1
            value = call(self, *arguments)
        except Failure as failure:
            return (failure.result,)
        if value is None:
            return (Result.CUDA_SUCCESS,)
        return (Result.CUDA_SUCCESS, *(value if isinstance(value, tuple) else (value,)))

    return answered


class Process:
    """One process's driver. `calls` are the names of all calls so far; `broken` is what broke the devices, if anything;
    with `fails_after` n, the calls that may run out of memory do so after n more of them."""

    CUmemAllocationProp = values.AllocationProp
    CUmemAccessDesc = values.AccessDesc
    CUmemAllocationType = values.AllocationType
    CUmemLocationType = values.LocationType
    CUmemAccess_flags = values.AccessFlags
    CUmemAllocationGranularity_flags = values.GranularityFlags
    CUstream_flags = values.StreamFlags
    CUevent_flags = values.EventFlags

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.initialised = False
        self.broken: str | None = None
        self.fails_after: int | None = None
        self.calls: list[str] = []
        self.memory = Memory(self.limits)
        self.pages = Pages(self.limits)
        self.work = Work()
        self.contexts: dict[int, int] = {}  # how often each device's primary context is held
        self._current = threading.local()

    def leaks(self) -> list[str]:
        """What has not been returned, a line each."""
        memory, work = self.memory, self.work
        kinds = {
            "address ranges": len(memory.ranges),
            "handles": sum(each.handle_open for each in memory.handles.values()),
            "mappings": len(memory.mappings),
            "locked allocations": len(self.pages.taken),
            "registered ranges": len(self.pages.registered),
            "streams": len(work.streams),
            "events": len(work.events),
            "contexts": sum(self.contexts.values()),
        }
        return [f"{count} {kind}" for kind, count in kinds.items() if count]

    @answers
    def cuInit(self, flags: int) -> None:
        require(flags == 0)
        require(self.limits.num_devices > 0, Result.CUDA_ERROR_NO_DEVICE)
        self.initialised = True

    @answers
    def cuDeviceGet(self, ordinal: int) -> int:
        self.device(ordinal)
        return ordinal

    @answers
    def cuDeviceGetCount(self) -> int:
        return self.limits.num_devices

    @answers
    def cuDeviceGetName(self, length: int, device: int) -> bytes:
        self.device(device)
        return b"Fake device".ljust(length, b"\0")

    @answers
    def cuDeviceCanAccessPeer(self, device: int, peer: int) -> int:
        self.device(device)
        self.device(peer)
        return int(self.limits.peers and device != peer)

    @answers
    def cuDevicePrimaryCtxRetain(self, device: int) -> int:
        self.device(device)
        self.contexts[device] = self.contexts.get(device, 0) + 1
        return CONTEXT_BASE + device

    @answers
    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        require(self.contexts.get(device, 0) > 0, Result.CUDA_ERROR_INVALID_CONTEXT)
        self.contexts[device] -= 1

    @answers
    def cuCtxGetCurrent(self) -> int:
        return int(getattr(self._current, "context", 0))

    @answers
    def cuCtxSetCurrent(self, context: int) -> None:
        known = context == 0 or self.contexts.get(context - CONTEXT_BASE, 0) > 0
        require(known, Result.CUDA_ERROR_INVALID_CONTEXT)
        self._current.context = context

    def device(self, device: int) -> None:
        require(0 <= device < self.limits.num_devices, Result.CUDA_ERROR_INVALID_DEVICE)

    def context(self) -> int:
        context = int(getattr(self._current, "context", 0))
        require(self.contexts.get(context - CONTEXT_BASE, 0) > 0, Result.CUDA_ERROR_INVALID_CONTEXT)
        return context

    def finish(self) -> None:
        """The driver waits for the devices before it unlocks memory that they may be reading."""
        running = [each for each in self.work.streams.values() if not each.stalled]
        self.work.run_until(lambda: all(self.work.idle(each) for each in running) or self.broken is not None)
