"""What waits to go down one stream: filled by the owner task, emptied by the stream's writer."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from headrace.core.errors import HeadraceError, Overloaded

Item = TypeVar("Item")

LONGEST_WRITE_S = 10.0


class Outbox(Generic[Item]):
    """Gathers while the last frame is being sent. `items` are those not sent yet."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._ready = asyncio.Event()
        self._closed = False
        self._error: HeadraceError | None = None

    def put(self, item: Item) -> None:
        self.items.append(item)
        self._ready.set()

    def close(self, error: HeadraceError | None = None) -> None:
        """Ends the stream after what has gathered, with `error` if given. The first close counts."""
        if not self._closed:
            self._closed, self._error = True, error
            self._ready.set()

    async def exchange(
        self, reading: Coroutine[None, None, None], write: Callable[[list[Item]], Awaitable[None]]
    ) -> None:
        """Reads and writes side by side until the peer has sent its last, an error ends either, or `close`.

        Raises the error that ended it. A peer that does not read for LONGEST_WRITE_S is cut off, not buffered for ever.
        """
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read(reading))
            with self._closing():
                await self._write(write)
            reader.cancel()
        if self._error:
            raise self._error

    async def _read(self, reading: Coroutine[None, None, None]) -> None:
        with self._closing():
            await reading

    async def _write(self, write: Callable[[list[Item]], Awaitable[None]]) -> None:
        while not self._closed or self.items:
            items, self.items = self.items, []
            if items:
                try:
                    async with asyncio.timeout(LONGEST_WRITE_S):
                        await write(items)
                except TimeoutError as error:
                    raise Overloaded(f"the peer has read nothing for {LONGEST_WRITE_S:g} s") from error
            if not self.items and not self._closed:
                self._ready.clear()
                await self._ready.wait()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            self.close(error)
        else:
            self.close()
