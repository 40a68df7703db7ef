"""The calls themselves: implements Bindings. A misuse gets the result that CUDA documents for it, and a device that has
met a bad address answers every later call with that error, as CUDA's contexts do.

Where CUDA documents nothing, the fake is the stricter; scripts/gpu_check compares the two on a real device.
"""

import ctypes
from collections.abc import Callable

from headrace.executor.cuda.fake import values
from headrace.executor.cuda.fake.memory_calls import MemoryCalls
from headrace.executor.cuda.fake.process import CONTEXT_BASE, answers
from headrace.executor.cuda.fake.values import Result, require
from headrace.executor.cuda.fake.work import Mark, Operation, Unit

_LAUNCH_S = 5e-6


class FakeCuda(MemoryCalls):
    """One process's driver. Its clock moves by `advance`, and by calls that wait."""

    def advance(self, seconds: float) -> None:
        """Time passes on the devices: takes the place of `time.sleep`."""
        self.work.run_to(self.work.now_s + seconds)

    def now(self) -> float:
        """The devices' clock, in seconds: takes the place of `time.monotonic`."""
        return self.work.now_s

    def stall(self, stream: int, stalled: bool = True) -> None:
        """Nothing more of the stream begins: a device that has lost its work."""
        self.work.stream(stream).stalled = stalled

    @answers
    def launch(
        self,
        stream: int,
        duration_s: float,
        reads: tuple[int, int],
        writes: int,
        kernel: Callable[[bytes], bytes],
    ) -> None:
        """Stands for a kernel's launch: `kernel` is given the bytes at `reads` = (address, size) as it begins; what it
        returns stands at `writes` when it is done."""
        read: list[bytes] = []
        touches = [reads, (writes, reads[1])]
        self._give(
            stream,
            Unit.COMPUTE,
            duration_s,
            lambda: read.append(self._load(*reads)),
            lambda: self._store(writes, kernel(read[0])),
            touches,
        )

    @answers
    def cuStreamCreate(self, flags: int) -> int:
        return self.work.new_stream(self.context())

    @answers
    def cuStreamDestroy(self, stream: int) -> None:
        """Returns at once; what is in it is done in its time. A stalled stream's work goes with it."""
        state = self.work.stream(stream)
        if not state.stalled:
            self.work.run_until(lambda: self.work.idle(state))
        del self.work.streams[stream]

    @answers
    def cuStreamQuery(self, stream: int) -> None:
        self.work.run_to(self.work.now_s)
        require(self.broken is None, Result.CUDA_ERROR_ILLEGAL_ADDRESS)
        require(self.work.idle(self.work.stream(stream)), Result.CUDA_ERROR_NOT_READY)

    @answers
    def cuStreamSynchronize(self, stream: int) -> None:
        state = self.work.stream(stream)
        self.work.run_until(lambda: self.work.idle(state) or self.broken is not None)
        require(self.broken is None, Result.CUDA_ERROR_ILLEGAL_ADDRESS)

    @answers
    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        require(flags == 0)
        mark = self.work.event(event).mark
        self.context()
        if mark is not None:
            self._give(stream, Unit.NONE, 0.0, _nothing, _nothing, after=mark)

    @answers
    def cuEventCreate(self, flags: int) -> int:
        timed = not flags & values.EventFlags.CU_EVENT_DISABLE_TIMING
        return self.work.new_event(self.context(), timed)

    @answers
    def cuEventDestroy(self, event: int) -> None:
        self.work.event(event)
        del self.work.events[event]

    @answers
    def cuEventRecord(self, event: int, stream: int) -> None:
        state = self.work.event(event)
        require(state.context == self.work.stream(stream).context, Result.CUDA_ERROR_INVALID_HANDLE)
        state.mark = Mark()
        self._give(stream, Unit.NONE, 0.0, _nothing, _nothing, mark=state.mark)

    @answers
    def cuEventQuery(self, event: int) -> None:
        mark = self.work.event(event).mark
        self.work.run_to(self.work.now_s)
        require(self.broken is None, Result.CUDA_ERROR_ILLEGAL_ADDRESS)
        require(mark is None or mark.done_s is not None, Result.CUDA_ERROR_NOT_READY)

    @answers
    def cuEventElapsedTime(self, start: int, end: int) -> float:
        marks = []
        for each in (self.work.event(start), self.work.event(end)):
            require(each.timed and each.mark is not None, Result.CUDA_ERROR_INVALID_HANDLE)
            marks.append(each.mark)
        done = [mark.done_s for mark in marks if mark is not None and mark.done_s is not None]
        require(len(done) == 2, Result.CUDA_ERROR_NOT_READY)
        return (done[1] - done[0]) * 1000

    @answers
    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._usable(target, size)
        early = None if self.pages.locked(source, size) else ctypes.string_at(source, size)

        def end() -> None:
            self._store(target, ctypes.string_at(source, size) if early is None else early)

        duration_s = _LAUNCH_S + size / self.limits.copy_bytes_per_s
        self._give(stream, Unit.COPY_IN, duration_s, _nothing, end, [(target, size)])
        if early is not None:  # from pages that may move, a copy holds the caller until they have been read
            self.work.run_until(lambda: self.work.idle(self.work.stream(stream)))

    @answers
    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._usable(source, size)

        def end() -> None:
            ctypes.memmove(target, self._load(source, size), size)

        duration_s = _LAUNCH_S + size / self.limits.copy_bytes_per_s
        self._give(stream, Unit.COPY_OUT, duration_s, _nothing, end, [(source, size)])
        if not self.pages.locked(target, size):
            self.work.run_until(lambda: self.work.idle(self.work.stream(stream)))

    @answers
    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> None:
        self._usable(address, size)
        duration_s = _LAUNCH_S + size / self.limits.memory_bytes_per_s
        data = bytes([value & 255]) * size
        self._give(stream, Unit.COMPUTE, duration_s, _nothing, lambda: self._store(address, data), [(address, size)])

    def _usable(self, address: int, size: int) -> None:
        """Copies are refused at once where there is no memory, or none that may be used."""
        require(size > 0 and self.memory.usable(address, size, self.context() - CONTEXT_BASE))

    def _give(
        self,
        stream: int,
        unit: Unit,
        duration_s: float,
        begin: Callable[[], None],
        end: Callable[[], None],
        touches: list[tuple[int, int]] | None = None,
        *,
        after: Mark | None = None,
        mark: Mark | None = None,
    ) -> None:
        state, context = self.work.stream(stream), self.context()
        require(state.context == context, Result.CUDA_ERROR_INVALID_HANDLE)
        device = context - CONTEXT_BASE
        whole = touches or []

        def checked() -> None:
            for address, size in whole:
                if not self.memory.usable(address, size, device):
                    self.broken = self.broken or f"work on bytes {address:#x} to {address + size:#x}, not mapped"
            if self.broken is None:
                end()

        self.work.give(state, Operation(unit, duration_s, self.work.now_s, begin, checked, whole, after, mark))

    def _load(self, address: int, size: int) -> bytes:
        return self.memory.read(address, size).ljust(size, b"\0")

    def _store(self, address: int, data: bytes) -> None:
        self.memory.write(address, data)


def _nothing() -> None:
    pass
