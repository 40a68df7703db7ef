"""The caller as a reader: one that takes nothing for too long is cut off, and what its call holds goes back.

gRPC's flow control holds a send back until the reader takes something, and there is no way to end a call that hangs
there. So the reader hears of it with the next piece that it takes, but what it held is free long before.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from headrace.core.errors import Overloaded

RETRY_AFTER_S = 1.0


def unread(longest_s: float) -> Overloaded:
    """What cuts a reader off."""
    return Overloaded(
        f"the reader took nothing for {longest_s:g} s",
        limit=f"{longest_s:g} s unread",
        retry_after_s=RETRY_AFTER_S,
    )


class Reader:
    """`sending` before each piece, `took` once it is gone; in between the caller is waited for."""

    def __init__(self, held: ExitStack, longest_s: float, stop: Callable[[Overloaded], None]) -> None:
        self._held = held
        self._stop = stop
        self._longest_s = longest_s
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._cut: Overloaded | None = None
        self.timer = self._loop.call_later(longest_s, self._look)

    def sending(self) -> None:
        self._since = self._loop.time()

    def took(self) -> None:
        """Raises Overloaded where it came too late."""
        self._since = None
        if self._cut is not None:
            raise self._cut

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._since is None else self._since) + self._longest_s
        if now < due:
            self.timer = self._loop.call_at(due, self._look)
            return
        self._cut = unread(self._longest_s)
        self._stop(self._cut)
        self._held.__exit__(type(self._cut), self._cut, None)  # as if the call had failed with it


@contextmanager
def reading(held: ExitStack, longest_s: float, stop: Callable[[Overloaded], None] = lambda _: None) -> Iterator[Reader]:
    """Watches until the block ends. One that is cut off gives `held` back; `stop` ends what is not held."""
    reader = Reader(held, longest_s, stop)
    try:
        yield reader
    finally:
        reader.timer.cancel()
