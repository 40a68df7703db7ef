"""What a request takes along when it leaves a lost executor, and how often it may."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from headrace.core.errors import Draining, NoExecutor, Unavailable
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Precision, QosClass, Sampling
from headrace.gateway.answer import Answer
from headrace.gateway.encoding import Encoding, EncodingRelay, Readout
from headrace.gateway.generation import Generation, Output, Placement, State
from headrace.gateway.relay import Relay

MODEL = ModelInfo("m", "decoder", "d", 4096, 256, (0,))
LOST = Unavailable("the executor was lost")


class Letters:
    def push(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode()

    def flush(self) -> str:
        return ""


def new_relay(sampling: Sampling, max_failovers: int = 3) -> Relay:
    generation = Generation(
        "r",
        "r.1",
        MODEL,
        np.ones(3, np.uint32),
        sampling,
        QosClass.NORMAL,
        Precision.ANY,
        "t",
        None,
        INVALID_SPAN_CONTEXT,
    )
    answers = [Answer(Letters(), sampling, (0,)) for _ in range(sampling.n)]
    return Relay(generation, answers, 8, max_failovers=max_failovers)


def place(relay: Relay) -> None:
    assert relay.place(Placement("e", "127.0.0.1:1", "b", 1, Precision.INT8, INVALID_SPAN_CONTEXT))


def send(relay: Relay, text: str, index: int = 0, finish: FinishReason = FinishReason.NONE) -> None:
    relay.output(Output(index, struct.pack(f"<{len(text)}I", *text.encode()), [], finish))


async def test_it_takes_its_tokens_along_and_what_has_ended() -> None:
    relay = new_relay(Sampling(max_tokens=9, n=3, stop=("x",)))
    place(relay)
    send(relay, "abc")
    send(relay, "dex", index=1)  # over, though the executor does not know
    send(relay, "fg", index=2, finish=FinishReason.STOP)
    assert await relay.pieces()
    send(relay, "h")  # not read yet
    relay.lose(LOST)
    moved = relay.generation
    assert relay.state is State.QUEUED
    assert moved.wire_id == "r.1.1"
    assert [bytes(each[::4]) for each in moved.answer_token_ids] == [b"abch", b"dex", b"fg"]
    assert moved.ended_answers == (1, 2)
    assert (moved.num_open_answers, moved.known_tokens) == (1, 4)
    assert moved.precision is Precision.INT8
    place(relay)
    send(relay, "i", finish=FinishReason.LENGTH)
    (piece,) = await relay.pieces()
    assert (piece.text, piece.finish) == ("hi", FinishReason.LENGTH)
    assert relay.ended


async def test_it_moves_a_bounded_number_of_times() -> None:
    relay = new_relay(Sampling(max_tokens=9), max_failovers=2)
    for _ in range(3):
        place(relay)
        relay.lose(LOST)
    assert relay.error is LOST
    assert relay.generation.wire_id == "r.1.2"


async def test_one_that_a_leaving_executor_refuses_moves_too() -> None:
    relay = new_relay(Sampling(max_tokens=9))
    place(relay)
    relay.refused(Draining("the executor is leaving"))
    assert (relay.state, relay.num_failovers) == (State.QUEUED, 1)


async def test_a_complete_answer_has_nothing_to_lose() -> None:
    relay = new_relay(Sampling(max_tokens=3))
    place(relay)
    send(relay, "abc", finish=FinishReason.LENGTH)
    relay.lose(LOST)
    (piece,) = await relay.pieces()
    assert (piece.text, relay.error, relay.num_failovers) == ("abc", None, 0)


async def test_a_text_is_encoded_elsewhere_a_bounded_number_of_times() -> None:
    encoding = Encoding(
        "t.1",
        MODEL,
        np.ones(3, np.uint32),
        3,
        Readout(),
        QosClass.NORMAL,
        Precision.ANY,
        "t",
        None,
        INVALID_SPAN_CONTEXT,
    )
    relay = EncodingRelay(encoding, max_failovers=1)
    placement = Placement("e", "127.0.0.1:1", "b", 1, Precision.INT8, INVALID_SPAN_CONTEXT)
    relay.place(placement)
    relay.lose(LOST)
    assert await relay.values() is None
    assert relay.generation.wire_id == "t.1.1"
    relay.decline(NoExecutor("none now"))
    with pytest.raises(NoExecutor):
        await relay.placement()
    relay.place(placement)
    assert await relay.placement() is placement
    relay.lose(LOST)
    with pytest.raises(Unavailable):
        await relay.values()
