"""What waits for the next frame of a long-lived stream: one item at low load, many while a frame is on its way."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from google.protobuf.message import Message

T = TypeVar("T", bound=Message)

MEMBER_OVERHEAD_BYTES = 16
"""An upper bound of what a member costs in its frame beside its own bytes: tag and length."""


class Outbox(Generic[T]):
    """Many writers, one reader: `put` never waits, `frames` yields all that has gathered, as far as one message goes.

    Its length is bounded by whoever admits the work, not here.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._waiting: OrderedDict[int, T] = OrderedDict()  # by identity: equal items are still two
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, item: T) -> None:
        self._waiting[id(item)] = item
        self._changed.set()

    def discard(self, item: T) -> None:
        """Takes back an item if it has not gone out."""
        self._waiting.pop(id(item), None)

    def close(self) -> None:
        """No more items will come; `frames` ends once those that wait are out."""
        self._closed = True
        self._changed.set()

    async def frames(self) -> AsyncIterator[list[T]]:
        """Never an empty frame, and no frame over the bound unless a single item is."""
        while True:
            await self._changed.wait()
            if self._waiting:
                yield self._take()
            elif self._closed:
                return
            else:
                self._changed.clear()

    def _take(self) -> list[T]:
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
