"""Long-lived streams: what has gathered goes out in one frame while the last one was being sent. No added wait."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc

Item = TypeVar("Item")
Frame = TypeVar("Frame")


class Outbox(Generic[Item]):
    """Items and cancellations by request id that wait for the next frame. Putting in never waits."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._items: dict[str, tuple[Item, int]] = {}
        self._cancelled: list[str] = []
        self._ready = asyncio.Event()

    def put(self, request_id: str, item: Item, num_bytes: int) -> None:
        self._items[request_id] = item, num_bytes
        self._ready.set()

    def cancel(self, request_id: str) -> None:
        """Takes the item back where it has not left yet, else tells the other side."""
        if self._items.pop(request_id, None) is None:
            self._cancelled.append(request_id)
            self._ready.set()

    def clear_items(self) -> None:
        self._items.clear()

    async def take(self) -> tuple[list[Item], list[str]]:
        """Waits until there is something; items up to the frame's size (one at least), all cancellations."""
        while not (self._items or self._cancelled):
            self._ready.clear()
            await self._ready.wait()
        items: list[Item] = []
        room = self._max_frame_bytes
        for request_id, (item, num_bytes) in list(self._items.items()):
            if items and num_bytes > room:
                break
            room -= num_bytes
            items.append(item)
            del self._items[request_id]
        cancelled, self._cancelled = self._cancelled, []
        return items, cancelled


async def exchange(
    call: grpc.aio.StreamStreamCall[Any, Frame],
    next_frame: Callable[[], Awaitable[Any | None]],
    receive: Callable[[Frame], None],
) -> None:
    """Writes next_frame() after next_frame(), hands what comes to `receive`; returns when the stream has ended.

    It ends when the other side ends or loses it, or when next_frame() gives None. Nothing of it is left then.
    """

    async def read() -> None:
        try:
            async for frame in call:
                receive(frame)
        except grpc.aio.AioRpcError:
            return  # lost: the caller of exchange knows what that means for its requests

    async def write() -> None:
        while (frame := await next_frame()) is not None:
            try:
                await call.write(frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the reader sees the end too, after what came before it
        reader.cancel()

    try:
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(read())
            writer = tasks.create_task(write())
            reader.add_done_callback(lambda _: writer.cancel())
    finally:
        call.cancel()
