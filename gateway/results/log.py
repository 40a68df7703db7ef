"""An answer while it is made: its pieces in order, for any number of readers. One event loop owns it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace.core.errors import HeadraceError

Entry = TypeVar("Entry")


class ResultLog(Generic[Entry]):
    """Pieces are only ever added, and never changed; `ended` with `error` or whole.

    Of those that have been made, the first `num_stored` are in the store too; `settled`: no more will be.
    """

    def __init__(self, pieces: Sequence[Entry] = (), num_tokens: int = 0) -> None:
        self.pieces = list(pieces)
        self.num_tokens = num_tokens
        self.num_stored = len(self.pieces)
        self.settled = False
        self.ended = False
        self.error: HeadraceError | None = None
        self._num_waiting = 0
        self._changed = asyncio.Event()

    def append(self, piece: Entry, num_tokens: int) -> None:
        self.pieces.append(piece)
        self.num_tokens += num_tokens
        self._tell()

    def end(self, error: HeadraceError | None) -> None:
        """The first end counts."""
        if not self.ended:
            self.ended, self.error = True, error
            self._tell()

    def store(self, count: int) -> None:
        """So many of the pieces are in the store."""
        self.num_stored = count
        self._tell()

    def settle(self) -> None:
        self.settled = True
        self._tell()

    async def more(self, offset: int, until: float | None) -> None:
        """Returns once there is a piece of number `offset` or the end, or at `until` on the event loop's clock."""
        await self._wait(lambda: self.ended or len(self.pieces) > offset, until)

    async def stored(self, offset: int, until: float | None) -> None:
        """As `more`, of what is in the store. While anybody waits here pieces are stored as they come."""
        self._num_waiting += 1
        self._tell()
        try:
            await self._wait(lambda: self.settled or self.num_stored > offset or self._all_stored, until)
        finally:
            self._num_waiting -= 1

    async def settlement(self, until: float) -> None:
        """Returns once all is in the store that ever will be, or at `until`."""
        await self._wait(lambda: self.settled, until)

    async def to_store(self, until: float) -> None:
        """Returns once the answer has ended, somebody waits for what is not in the store, or at `until`."""
        await self._wait(lambda: self.ended or (self._num_waiting > 0 and len(self.pieces) > self.num_stored), until)

    @property
    def _all_stored(self) -> bool:
        return self.ended and self.num_stored == len(self.pieces)

    async def _wait(self, condition: Callable[[], bool], until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        self._changed.set()  # for those who wait now; who comes later waits for the next
        self._changed = asyncio.Event()
