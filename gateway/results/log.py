"""An answer while it is made: its pieces in order, for any number of readers. One event loop owns it."""

import asyncio
from typing import Generic, TypeVar

from headrace.core.errors import HeadraceError

Entry = TypeVar("Entry")


class ResultLog(Generic[Entry]):
    """Pieces are only ever added, and never changed; `ended` with `error` or whole."""

    def __init__(self) -> None:
        self.pieces: list[Entry] = []
        self.num_tokens = 0
        self.ended = False
        self.error: HeadraceError | None = None
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

    async def more(self, offset: int, until: float | None) -> None:
        """Returns once there is a piece of number `offset` or the end, or at `until` on the event loop's clock."""
        await self._wait(offset, until)

    async def over(self, until: float) -> bool:
        """Whether it has ended, at `until` the latest."""
        await self._wait(None, until)
        return self.ended

    async def _wait(self, offset: int | None, until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                while not self.ended and (offset is None or len(self.pieces) <= offset):
                    await self._changed.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        self._changed.set()  # for those who wait now; who comes later waits for the next
        self._changed = asyncio.Event()
