"""What waits for the screen, judged together: a few windows at a time, every waiting request in turn.

One owner on the event loop; the screen's work runs in a pool of its own, so that it never waits behind tokenising.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.core.errors import QueueFull
from headrace.core.screening import Verdict, worst
from headrace.preprocess.screen.protocol import Screen

INLINE_CHARACTERS = 512
"""A text up to this long is split on the event loop: a hop to a thread would cost more."""
RETRY_AFTER_S = 0.5


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request's windows that nobody has judged yet, and the verdicts on the others."""

    windows: deque[object]
    num_windows: int
    answer: asyncio.Future[Verdict]
    verdicts: list[Verdict] = field(default_factory=list)


class ScreenBatcher:
    """`max_batch` windows at a time on each thread; `max_waiting` requests at most, the next one is refused."""

    def __init__(self, screen: Screen[object], pool: ThreadPoolExecutor, max_batch: int, max_waiting: int) -> None:
        self._screen = screen
        self._pool = pool
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Condition()
        self.num_requests = 0

    async def screen(self, texts: Sequence[str]) -> tuple[Verdict, int]:
        """The worst verdict on any part of the texts, and the number of parts. Raises QueueFull."""
        if self.num_requests >= self._max_waiting:
            raise QueueFull(
                f"{self.num_requests} requests wait for the screen",
                limit=f"{self._max_waiting} requests",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_requests += 1
        try:
            windows = await self._split(texts)
            request = _Waiting(deque(windows), len(windows), asyncio.get_running_loop().create_future())
            self._waiting.append(request)
            async with self._wake:
                self._wake.notify()
            return await request.answer, request.num_windows
        finally:
            self.num_requests -= 1

    async def run(self) -> None:
        """Judges one batch after the other until cancelled; one such task a thread."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._wake:
                await self._wake.wait_for(lambda: bool(self._waiting))
            if batch := self._next_batch():
                windows = [window for _, window in batch]
                try:
                    verdicts = await loop.run_in_executor(self._pool, self._screen.judge, windows)
                except Exception as error:  # the screen's fault is its requests', the next batch may be well
                    for request, _ in batch:
                        if not request.answer.done():
                            request.answer.set_exception(error)
                    continue
                for (request, _), verdict in zip(batch, verdicts, strict=True):
                    _add(request, verdict)

    async def _split(self, texts: Sequence[str]) -> list[object]:
        def split() -> list[object]:
            return [window for text in texts for window in self._screen.split(text)]

        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return split()
        return await asyncio.get_running_loop().run_in_executor(self._pool, split)

    def _next_batch(self) -> list[tuple[_Waiting, object]]:
        """One window of each request in turn: a long text does not hold up short ones. Forgets who has gone."""
        batch: list[tuple[_Waiting, object]] = []
        while self._waiting and len(batch) < self._max_batch:
            request = self._waiting.popleft()
            if request.answer.done():
                continue
            batch.append((request, request.windows.popleft()))
            if request.windows:
                self._waiting.append(request)
        return batch


def _add(request: _Waiting, verdict: Verdict) -> None:
    """Something found is the answer at once; else the last window's verdict completes it."""
    request.verdicts.append(verdict)
    if not request.answer.done() and (verdict.category or len(request.verdicts) == request.num_windows):
        request.answer.set_result(worst(request.verdicts))


@asynccontextmanager
async def open_batcher(
    screen: Screen[object], threads: int, max_batch: int, max_waiting: int
) -> AsyncIterator[ScreenBatcher]:
    """A batcher with its threads, which end with the block."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="screen")
    batcher = ScreenBatcher(screen, pool, max_batch, max_waiting)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(batcher.run()) for _ in range(threads)]
            try:
                yield batcher
            finally:
                for task in running:
                    task.cancel()
    finally:
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)
