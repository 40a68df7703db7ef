"""Streams in virtual time: what is given to a stream runs in order, streams run beside each other.

There is one engine for copies to the device, one for copies from it and one that computes. The clock moves only when it
is told to, so that what has not been waited for has not happened. A copy reads its source at its end and work on the
device reads at its beginning, the worst that hardware may do: memory that is used again too early shows.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.executor.cuda.fake.values import Result, require


class Unit(Enum):
    """What an operation occupies while it runs."""

    COPY_IN = "copy_in"
    COPY_OUT = "copy_out"
    COMPUTE = "compute"
    NONE = "none"


@dataclass
class Mark:
    """One recording of an event."""

    done_s: float | None = None


@dataclass
class Operation:
    """`begin()` is called as it starts, `end()` as it is done; `touches` are (address, bytes) on the device."""

    unit: Unit
    duration_s: float
    given_s: float
    begin: Callable[[], None]
    end: Callable[[], None]
    touches: Sequence[tuple[int, int]] = ()
    after: Mark | None = None
    mark: Mark | None = None


@dataclass
class StreamState:
    context: int
    queue: deque[Operation] = field(default_factory=deque)
    running: list[Operation] = field(default_factory=list)
    free_s: float = 0.0
    stalled: bool = False


@dataclass
class EventState:
    context: int
    timed: bool
    mark: Mark | None = None


class Hang(Exception):
    """A real driver would wait for ever here."""


class Work:
    """All streams and events of one process. `now_s` is the devices' clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.streams: dict[int, StreamState] = {}
        self.events: dict[int, EventState] = {}
        self._units = dict.fromkeys(Unit, 0.0)
        self._ends: list[tuple[float, int, StreamState, Operation]] = []
        self._order = itertools.count()
        self._next_number = itertools.count(1)

    def new_stream(self, context: int) -> int:
        number = next(self._next_number)
        self.streams[number] = StreamState(context)
        return number

    def new_event(self, context: int, timed: bool) -> int:
        number = next(self._next_number)
        self.events[number] = EventState(context, timed)
        return number

    def stream(self, number: int) -> StreamState:
        require(number in self.streams, Result.CUDA_ERROR_INVALID_HANDLE)
        return self.streams[number]

    def event(self, number: int) -> EventState:
        require(number in self.events, Result.CUDA_ERROR_INVALID_HANDLE)
        return self.events[number]

    def give(self, stream: StreamState, operation: Operation) -> None:
        stream.queue.append(operation)
        self.run_to(self.now_s)

    def idle(self, stream: StreamState) -> bool:
        return not stream.queue and not stream.running

    def pending(self, address: int, size: int) -> bool:
        """Whether anything given touches the range and is not done."""
        return any(
            first < address + size and address < first + length
            for stream in self.streams.values()
            for operation in (*stream.queue, *stream.running)
            for first, length in operation.touches
        )

    def run_to(self, until_s: float) -> None:
        """Moves the clock, and does all that is due by then, in the order in which it happens."""
        while True:
            start = self._next_start()
            end_s = self._ends[0][0] if self._ends else None
            if end_s is not None and end_s <= until_s and (start is None or end_s <= start[0]):
                _, _, stream, operation = heapq.heappop(self._ends)
                stream.running.remove(operation)
                operation.end()
                if operation.mark is not None:
                    operation.mark.done_s = end_s
            elif start is not None and start[0] <= until_s:
                self._start(*start)
            else:
                self.now_s = max(self.now_s, until_s)
                return

    def run_until(self, done: Callable[[], bool]) -> None:
        """As far as is needed. Raises Hang where it never comes."""
        self.run_to(self.now_s)
        while not done():
            start = self._next_start()
            times = [
                each for each in (start and start[0], self._ends[0][0] if self._ends else None) if each is not None
            ]
            if not times:
                raise Hang("what is waited for waits for something that never comes")
            self.run_to(max(self.now_s, min(times)))

    def _next_start(self) -> tuple[float, StreamState] | None:
        starts = []
        for number, stream in self.streams.items():
            if not stream.queue or stream.stalled:
                continue
            operation = stream.queue[0]
            ready_s = max(stream.free_s, operation.given_s)
            if operation.after is not None:
                if operation.after.done_s is None:
                    continue
                ready_s = max(ready_s, operation.after.done_s)
            if operation.unit is not Unit.NONE:
                ready_s = max(ready_s, self._units[operation.unit])
            starts.append((ready_s, number))
        if not starts:
            return None
        ready_s, number = min(starts)
        return ready_s, self.streams[number]

    def _start(self, start_s: float, stream: StreamState) -> None:
        operation = stream.queue.popleft()
        operation.begin()
        end_s = start_s + operation.duration_s
        stream.free_s = end_s
        if operation.unit is not Unit.NONE:
            self._units[operation.unit] = end_s
        stream.running.append(operation)
        heapq.heappush(self._ends, (end_s, next(self._order), stream, operation))
