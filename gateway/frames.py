"""The gateway's side of its long-lived streams: sends what gathers in an outbox, hands on what comes."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from headrace.chassis.outbox import Outbox, joined
from headrace.core.errors import Overloaded

Sent = TypeVar("Sent", bound=Message)
Received = TypeVar("Received", bound=Message)

log = logging.getLogger(__name__)

_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


async def exchange(
    call: grpc.aio.StreamStreamCall[Sent, Received], outbox: Outbox[Sent], receive: Callable[[Received], None]
) -> None:
    """Sends the outbox's partial frames joined, hands what comes to `receive`; returns when the stream has ended.

    It ends when the other side ends or loses it, takes no frame for too long, or when the outbox is closed and all of
    it has gone out. Nothing of it is left then; the outbox keeps what has not gone out. Nothing leaves the outbox
    before the other side is reached.
    """

    async def read() -> None:
        try:
            async for frame in call:
                receive(frame)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                log.error("refused: %s", error.details())
            return  # lost: the caller of exchange knows what that means for its requests

    async def write() -> None:
        try:
            await call.wait_for_connection()
            await outbox.send(lambda parts: call.write(joined(parts)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader sees the end too, after what came before it
        except Overloaded as error:
            log.warning("gives up a stream: %s", error)
        reader.cancel()

    try:
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(read())
            writer = tasks.create_task(write())
            reader.add_done_callback(lambda _: writer.cancel())
    finally:
        call.cancel()
