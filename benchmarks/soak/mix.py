"""The mixed load: calls drawn from a seed, and how each is made. Workers ask one call after another.

A malformed call goes to any of the suite's services, past the client, which would not send it.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import grpc

from headrace.benchmarks.disturbances import Disturber
from headrace.benchmarks.soak.calls import Ask, Ended, Manner, fault_of
from headrace.benchmarks.suite import Suite
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.client import Piece
from headrace.core.errors import EngineFault, HeadraceError, InvalidRequest

MANNERS = (*[Manner.PATIENT] * 5, Manner.SLOW, *[Manner.FICKLE] * 2, Manner.HURRIED, Manner.MALFORMED)
"""One is drawn for each call."""
CLASSES = ("realtime", *["normal"] * 3, "batch")
NUM_ANSWERS = (1, 1, 1, 2, 3)
WORDS = ("water", "wheel", "mill", "river", "stone", "gate", "channel", "flow", "turns", "quiet", "under", "the")
MALFORMED_BYTES = (b"\xff" * 9, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03\xff\xfe\xc3", b"\x0b" * 200)
METHODS = {
    "gateway": ("unary", "/headrace.gateway.v1.GatewayService/Generate"),
    "scheduler": ("stream", "/headrace.scheduler.v1.SchedulerService/Submit"),
    "executor": ("stream", "/headrace.executor.v1.ExecutorService/Execute"),
}
"""What malformed frames are sent to, and how its requests come."""
ANSWER_S = 300.0
"""Longest wait for an answer: what takes longer has been lost."""
SLOW_S = (0.05, 0.4)
HURRIED_S = (0.02, 1.5)
AFTER_ERROR_S = 0.25
WRITTEN_AFTER_END = "Internal error from Core"
"""What gRPC's client says where the service had ended the call while the frame was on its way."""


def draw(drawn: random.Random) -> Ask:
    """The next call."""
    manner = drawn.choice(MANNERS)
    text = " ".join(drawn.choices(WORDS, k=drawn.randint(1, 80)))
    prompt = text if drawn.random() < 0.5 else [{"role": "user", "content": text}]
    options: dict[str, Any] = {
        "qos": drawn.choice(CLASSES),
        "max_tokens": drawn.randint(1, 96),
        "ignore_eos": drawn.random() < 0.7,
        "timeout_s": drawn.uniform(*HURRIED_S) if manner is Manner.HURRIED else ANSWER_S,
    }
    if drawn.random() < 0.5:
        options |= {"temperature": 0.8, "seed": drawn.randrange(2**31)}
    if manner is Manner.SLOW:  # what it reads one by one should not take minutes
        return Ask(manner, prompt, options | {"max_tokens": drawn.randint(1, 24)})
    return Ask(manner, prompt, options, drawn.choice(NUM_ANSWERS), drawn.randint(1, 8))


async def worker(suite: Suite, disturber: Disturber, drawn: random.Random, over: asyncio.Event) -> list[Ended]:
    """Asks until it is over, then hears the last answer out."""
    ended = []
    while not over.is_set():
        ask = draw(drawn)
        with disturber.call() as asked_s:
            num_pieces, hung_up, error, fault = 0, False, None, ""
            try:
                if ask.manner is Manner.MALFORMED:
                    await _malformed(suite, drawn)
                else:
                    pieces, hung_up = await _answer(suite, ask, drawn)
                    num_pieces, fault = len(pieces), "" if hung_up else fault_of(pieces, ask.n)
            except _Broken as broken:
                num_pieces, error = broken.num_pieces, broken.error
            ended.append(Ended(ask.manner, asked_s, disturber.now_s(), num_pieces, hung_up, error, fault))
        if error is not None:
            await asyncio.sleep(AFTER_ERROR_S)
    return ended


class _Broken(Exception):
    """A call that ended with an error after some pieces."""

    def __init__(self, error: HeadraceError, num_pieces: int = 0) -> None:
        super().__init__(error)
        self.error = error
        self.num_pieces = num_pieces


async def _answer(suite: Suite, ask: Ask, drawn: random.Random) -> tuple[list[Piece], bool]:
    """The pieces, and whether the caller hung up before the last."""
    pieces: list[Piece] = []
    try:
        stream = suite.client.stream(suite.model, ask.prompt, n=ask.n, **ask.options)
        async with aclosing(cast(AsyncGenerator[Piece, None], stream)):
            async for piece in stream:
                pieces.append(piece)
                if ask.manner is Manner.FICKLE and len(pieces) == ask.num_pieces:
                    return pieces, piece.usage is None
                if ask.manner is Manner.SLOW:
                    await asyncio.sleep(drawn.uniform(*SLOW_S))
    except HeadraceError as error:
        raise _Broken(error, len(pieces)) from error
    return pieces, False


async def _malformed(suite: Suite, drawn: random.Random) -> None:
    """Sends bytes that are no message, and raises how the call ended. That it ended well is an error of its own."""
    service, data = drawn.choice(list(METHODS)), drawn.choice(MALFORMED_BYTES)
    kind, path = METHODS[service]

    async def frames() -> AsyncIterator[bytes]:
        yield data

    async with open_channel(suite.addresses[service], TransportSettings()) as channel:
        one: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
        many: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
        waits: dict[str, Any] = {"timeout": ANSWER_S, "wait_for_ready": True}
        call: AsyncIterable[bytes] = one(data, **waits) if kind == "unary" else many(frames(), **waits)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            known = from_rpc_error(error)
            if error.details() == WRITTEN_AFTER_END:
                known = InvalidRequest(WRITTEN_AFTER_END)
            raise _Broken(known) from error
    raise _Broken(EngineFault(f"{service} took {data!r} for a message"))
