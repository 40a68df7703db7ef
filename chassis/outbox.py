"""What waits for the next frame of a long-lived stream: one item at low load, many while a frame is on its way."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from google.protobuf.message import Message

from headrace.core.errors import HeadraceError, Overloaded

T = TypeVar("T", bound=Message)

MEMBER_OVERHEAD_BYTES = 16
"""An upper bound of what a member costs in its frame beside its own bytes: tag and length."""
MAX_FRAME_BYTES = 2**20
"""For streams of small members: well within every default of what a message may hold."""
LONGEST_WRITE_S = 10.0
"""A peer that has not taken a frame for this long is cut off, not buffered for ever."""


class Outbox(Generic[T]):
    """Many writers, one reader: `put` never waits, what has gathered goes out together as far as one frame goes.

    Its length is bounded by whoever admits the work and by the longest write, not here.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._waiting: OrderedDict[int, T] = OrderedDict()  # by identity: equal items are still two
        self._changed = asyncio.Event()
        self._closed = False
        self._error: HeadraceError | None = None

    def put(self, item: T) -> None:
        self._waiting[id(item)] = item
        self._changed.set()

    def discard(self, item: T) -> bool:
        """Takes back an item. False where it has gone out, or is about to."""
        return self._waiting.pop(id(item), None) is not None

    def take_back(self) -> list[T]:
        """All that has not gone out, in order; none of it will."""
        items = list(self._waiting.values())
        self._waiting.clear()
        return items

    def close(self, error: HeadraceError | None = None) -> None:
        """The stream ends once those that wait are out, with `error` if given. The first close counts."""
        if not self._closed:
            self._closed, self._error = True, error
            self._changed.set()

    async def frames(self) -> AsyncGenerator[list[T], None]:
        """Never an empty frame, and no frame over the bound unless a single item is. Raises what it was closed with."""
        while True:
            await self._changed.wait()
            if self._waiting:
                yield self._next_frame()
            elif self._closed:
                if self._error:
                    raise self._error
                return
            else:
                self._changed.clear()

    async def send(self, write: Callable[[list[T]], Awaitable[None]], longest_write_s: float = LONGEST_WRITE_S) -> None:
        """Writes frame after frame until closed. Raises what it was closed with, Overloaded where a write takes longer
        than `longest_write_s`. Items whose write failed have not gone out."""
        async with aclosing(self.frames()) as frames:
            async for items in frames:
                try:
                    async with asyncio.timeout(longest_write_s):
                        await write(items)
                except BaseException as error:
                    self._put_back(items)
                    if isinstance(error, TimeoutError):
                        raise Overloaded(f"the peer has read nothing for {longest_write_s:g} s") from error
                    raise

    async def exchange(
        self,
        reading: Coroutine[None, None, None],
        write: Callable[[list[T]], Awaitable[None]],
        longest_write_s: float = LONGEST_WRITE_S,
    ) -> None:
        """A server's side of a stream: reads and sends side by side until the peer has sent its last, or `close`.

        What has gathered by then still goes out. Raises the core error that ended either side.
        """
        ended: HeadraceError | None = None
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(self._read(reading))
            try:
                await self.send(write, longest_write_s)
            except HeadraceError as error:
                ended = error
            reader.cancel()
        if ended:
            raise ended

    async def _read(self, reading: Coroutine[None, None, None]) -> None:
        try:
            await reading
        except HeadraceError as error:
            self.close(error)
        else:
            self.close()

    def _put_back(self, items: list[T]) -> None:
        self._waiting = OrderedDict([*((id(item), item) for item in items), *self._waiting.items()])

    def _next_frame(self) -> list[T]:
        frame: list[T] = []
        room = self._max_frame_bytes
        while self._waiting:
            key, item = self._waiting.popitem(last=False)
            room -= item.ByteSize() + MEMBER_OVERHEAD_BYTES
            if frame and room < 0:
                self._waiting[key] = item
                self._waiting.move_to_end(key, last=False)
                break
            frame.append(item)
        return frame


def joined(parts: Sequence[T]) -> T:
    """Partial frames (one at least) as one: lists follow each other, of single values the last holds."""
    if len(parts) == 1:
        return parts[0]
    frame = type(parts[0])()
    for part in parts:
        frame.MergeFrom(part)
    return frame
