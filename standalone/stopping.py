"""How a program here is told to leave: SIGTERM or SIGINT, once to drain, twice to stop waiting."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stop:
    """While the program starts, the first signal cancels it; while it serves, the first lets `wait` return and the
    second cancels what still drains."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self._task = task
        self._asked = asyncio.Event()
        self._serving = False

    def ask(self) -> None:
        if self._serving and not self._asked.is_set():
            self._asked.set()
        else:
            self._task.cancel()

    async def wait(self) -> None:
        """Returns when the program is to drain."""
        self._serving = True
        await self._asked.wait()


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Signals of this process ask the returned Stop; for the main thread's current task."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("stop_signals needs a running task")
    stop, loop = Stop(task), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.ask)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
