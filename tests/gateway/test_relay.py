"""One request's state: what gathers is bounded, and an end is an end."""

import numpy as np
import pytest
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from headrace.api.types.v1.types_pb2 import Logprobs
from headrace.core.errors import EngineFault, Unavailable
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Precision, QosClass, Sampling
from headrace.gateway.answer import Answer
from headrace.gateway.generation import Generation, Output, Placement, State
from headrace.gateway.relay import MAX_PIECE_TOKENS, Relay, merged

MODEL = ModelInfo("m", "decoder", "d", 10**6, 256, (0,))
PLACEMENT = Placement("e", "e:1", "b", 1, Precision.FP16, INVALID_SPAN_CONTEXT)
NONE, STOP, LENGTH = FinishReason.NONE, FinishReason.STOP, FinishReason.LENGTH


class Silent:
    def push(self, token_ids):
        return ""

    def flush(self):
        return ""


def relay(n: int = 1, max_buffered_frames: int = 8) -> Relay:
    sampling = Sampling(n=n)
    generation = Generation(
        "r",
        "r",
        MODEL,
        np.ones(3, np.uint32),
        sampling,
        QosClass.NORMAL,
        Precision.ANY,
        "t",
        None,
        INVALID_SPAN_CONTEXT,
    )
    one = Relay(generation, [Answer(Silent(), sampling, {0}) for _ in range(n)], max_buffered_frames)
    one.place(PLACEMENT)
    return one


def output(num_tokens: int, index: int = 0, finish: FinishReason = NONE) -> Output:
    return Output(index, b"\1\0\0\0" * num_tokens, [Logprobs()] * num_tokens, finish)


async def test_frames_for_a_slow_reader_are_bounded_and_lose_nothing():
    one = relay(n=2)
    for _ in range(1000):
        one.output(output(1, 0))
        one.output(output(1, 1))
        assert one.num_frames <= 8
    first, second = await one.pieces()
    assert (len(first.token_ids), len(second.token_ids), len(first.logprobs)) == (4000, 4000, 1000)
    assert (first.precision, second.precision) == (Precision.FP16, Precision.ANY)


def test_a_merged_output_stays_within_a_message():
    sizes = [1000, 3000, 3000, 1000, 5000, 1, 1]
    groups = merged([output(size) for size in sizes])
    assert [len(group.token_ids) // 4 for group in groups] == [4000, 4000, 5000, 2]
    assert all(len(group.token_ids) // 4 <= MAX_PIECE_TOKENS for group in groups[:2])
    assert [len(group.logprobs) for group in groups] == [4000, 4000, 5000, 2]


async def test_a_failure_comes_after_what_had_arrived():
    one = relay()
    one.output(output(2))
    one.fail(Unavailable("gone"))
    one.output(output(5))  # too late
    [piece] = await one.pieces()
    assert (len(piece.token_ids), piece.usage) == (8, None)
    with pytest.raises(Unavailable):
        await one.pieces()
    assert not one.executor_done


async def test_a_complete_answer_cannot_fail_any_more():
    one = relay()
    one.output(output(2, finish=LENGTH))
    assert one.executor_done
    one.fail(Unavailable("gone"))
    [piece] = await one.pieces()
    assert (piece.finish, piece.usage.completion_tokens) == (LENGTH, 2)
    assert one.state is State.ENDED
    assert await one.pieces() == []


async def test_a_placement_after_the_end_changes_nothing():
    one = Relay(relay().generation, [Answer(Silent(), Sampling(), {0})], 8)
    one.expire()
    one.place(PLACEMENT)
    assert one.served_by is None
    with pytest.raises(Exception, match="while queued"):
        await one.placement()


async def test_an_answer_that_nobody_asked_for_is_a_fault():
    one = relay(n=2)
    one.output(output(1, index=2))
    with pytest.raises(EngineFault, match="answer 2 of 2"):
        await one.pieces()
