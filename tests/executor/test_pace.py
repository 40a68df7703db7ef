"""Steps keep the pace of the streams in them, and prompts always get through."""

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.step_model import StepModel, StepSample
from headrace.executor.pace import LEAST_SHARE, step_budget
from headrace.executor.sequence import Sequence

STEP_TOKENS = 640
REALTIME, NORMAL, BATCH = 1, 2, 3
TARGETS = {REALTIME: 0.1, NORMAL: 0.2}


def learned() -> StepModel:
    """10 ms, half a millisecond a decode, a quarter of one a prefill token."""
    model = StepModel()
    for number in range(600):
        decodes, prefill = number % 60, number * 7 % 500
        model.observe([StepSample(decodes, prefill, 0.01 + 0.0005 * decodes + 0.00025 * prefill)])
    return model


MODEL = learned()


def streams(*priorities: int, prefilling: bool = False) -> list[Sequence]:
    return [
        cast(Sequence, SimpleNamespace(prefilling=prefilling, job=SimpleNamespace(priority=priority)))
        for priority in priorities
    ]


def test_a_realtime_stream_bounds_the_step() -> None:
    budget = step_budget(MODEL, streams(REALTIME, *[BATCH] * 31), TARGETS, STEP_TOKENS)
    assert 32 + 290 <= budget <= 32 + 300  # (100 ms - 10 ms - 32 decodes of 0.5 ms) at 0.25 ms a token


def test_nobody_who_decodes_means_the_whole_step() -> None:
    assert step_budget(MODEL, streams(REALTIME, prefilling=True), TARGETS, STEP_TOKENS) == STEP_TOKENS


def test_batch_has_no_pace() -> None:
    assert step_budget(MODEL, streams(*[BATCH] * 64), TARGETS, STEP_TOKENS) == STEP_TOKENS


def test_nothing_is_held_back_before_steps_are_known() -> None:
    assert step_budget(StepModel(), streams(*[REALTIME] * 64), TARGETS, STEP_TOKENS) == STEP_TOKENS


@given(st.lists(st.sampled_from([REALTIME, NORMAL, BATCH]), max_size=200))
def test_the_pace_holds_or_prompts_have_their_least(priorities: list[int]) -> None:
    budget = step_budget(MODEL, streams(*priorities), TARGETS, STEP_TOKENS)
    assert budget <= STEP_TOKENS
    if len(priorities) + STEP_TOKENS // LEAST_SHARE <= STEP_TOKENS:
        assert budget - len(priorities) >= STEP_TOKENS // LEAST_SHARE
    pace = min((TARGETS.get(priority, 9.9) for priority in priorities), default=9.9)
    if budget - len(priorities) > STEP_TOKENS // LEAST_SHARE:
        assert MODEL.seconds(len(priorities), budget - len(priorities)) <= pace + 1e-6
