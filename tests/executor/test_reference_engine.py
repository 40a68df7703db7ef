"""The reference engine against its rule worked out by hand."""

import numpy as np
import pytest

from headrace.core.errors import EngineFault, EngineNotReady
from headrace.core.model import ModelInfo
from headrace.executor.engines.protocol import StepPlan
from headrace.executor.engines.reference import EOS_TOKEN_ID, ReferenceEngine, expected_answer

INFO = ModelInfo("reference", "decoder", "built in", context_tokens=256, vocab_size=512, eos_token_ids=(256,))


def plan(tokens: list[int], past: int, blocks: list[int]) -> StepPlan:
    return StepPlan(
        token_ids=np.array(tokens, np.int64),
        past_lens=np.array([past], np.int32),
        subsequence_begins=np.array([0, len(tokens)], np.int32),
        block_indices=np.array(blocks, np.int32),
        block_indices_begins=np.array([0, len(blocks)], np.int32),
        wanted_tokens=np.array([len(tokens) - 1], np.int64),
    )


def test_the_example_in_the_docstring() -> None:
    # "Hi\": h = 72, 250, then 500 + 92 + 2 = 594; 594 mod 95 = 24, and 32 + 24 = 56
    assert expected_answer(b"Hi", 2) == [92, 56]
    engine = ReferenceEngine(INFO, 4)
    output = engine.forward(plan([72, 105], 0, [2]))
    assert output.candidate_ids[0, :3].tolist() == [92, 91, 93]  # neighbours on the ring tie: lower id first
    assert output.candidate_logits[0, :3].tolist() == [4.0, 3.75, 3.75]
    assert output.logits(0)[0] == -16
    assert engine.forward(plan([92], 2, [2])).candidate_ids[0, 0] == 56


def test_the_end_byte_ends_the_answer_at_a_multiple_of_eight() -> None:
    assert expected_answer(b"\x04234567", 9)[1:] == [EOS_TOKEN_ID]
    assert expected_answer(b"\x042345678", 9) == [EOS_TOKEN_ID]
    assert EOS_TOKEN_ID not in expected_answer(b"12345678", 40)
    output = ReferenceEngine(INFO, 4).forward(plan(list(b"\x042345678"), 0, [0, 1]))
    assert output.candidate_ids[0, 0] == EOS_TOKEN_ID


def test_the_engine_follows_the_rule_token_by_token() -> None:
    prompt = list(b"A headrace is the channel that feeds a water wheel.")
    expected = expected_answer(prompt, 60)
    assert len(set(expected)) > 20
    engine, blocks = ReferenceEngine(INFO, 64), list(range(40, 10, -1))
    token = int(engine.forward(plan(prompt, 0, blocks)).candidate_ids[0, 0])
    answer = [token]
    while len(answer) < 60:
        token = int(engine.forward(plan([token], len(prompt) + len(answer) - 1, blocks)).candidate_ids[0, 0])
        answer.append(token)
    assert answer == expected


@pytest.mark.parametrize("blocks", [[1, 0, 2], [0, 3, 2], [0, 0, 2]])
def test_a_wrong_table_gives_another_row(blocks: list[int]) -> None:
    engine = ReferenceEngine(INFO, 4)
    right = engine.forward(plan(list(b"abcdefghi"), 0, [0, 1, 2])).logits(0)
    again = engine.forward(plan([ord("i")], 8, [0, 1, 2])).logits(0)
    wrong = engine.forward(plan([ord("i")], 8, blocks)).logits(0)
    assert np.array_equal(right, again)
    assert not np.array_equal(right, wrong)


def test_a_released_block_is_forgotten() -> None:
    engine = ReferenceEngine(INFO, 4)
    right = engine.forward(plan(list(b"abcde"), 0, [0, 1])).logits(0)
    engine.release_blocks(np.array([0], np.int32))
    assert not np.array_equal(right, engine.forward(plan([ord("e")], 4, [0, 1])).logits(0))


def test_a_plan_that_cannot_be_is_a_fault() -> None:
    engine = ReferenceEngine(INFO, 4)
    with pytest.raises(EngineFault, match="1 blocks for 5"):
        engine.forward(plan([1, 2, 3, 4, 5], 0, [0]))
    with pytest.raises(EngineFault, match="outside"):
        engine.forward(plan([1], 0, [4]))
    engine.close()
    with pytest.raises(EngineFault, match="outside"):
        engine.forward(plan([1], 0, [0]))


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(EngineNotReady):
        ReferenceEngine(ModelInfo("tiny", "decoder", "", 8, 256, (256,)), 4)
