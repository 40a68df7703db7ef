"""How a soak judges one call: what excuses an error, what a whole answer is."""

from dataclasses import replace

import pytest

from headrace.benchmarks.disturbances import Disturbance, How
from headrace.benchmarks.soak.calls import Ended, Fate, Manner, fate, fault_of
from headrace.client import FinishReason, Piece, Precision, Usage
from headrace.core.errors import (
    DeadlineMissed,
    EngineFault,
    HeadraceError,
    InvalidRequest,
    NoExecutor,
    QueueFull,
    Unavailable,
)

AWAY = [Disturbance("gateway", How.KILLED, 10.0, 12.0), Disturbance("executor", How.PAUSED, 30.0, 35.0)]
CALL = Ended(Manner.PATIENT, 1.0, 2.0, num_pieces=3)


def test_an_answer_without_a_fault_is_finished() -> None:
    assert fate(CALL, AWAY) is Fate.FINISHED
    assert fate(replace(CALL, fault="no usage at the end"), AWAY) is Fate.FAILED


def test_who_hangs_up_or_set_a_hard_deadline_has_cancelled() -> None:
    assert fate(replace(CALL, manner=Manner.FICKLE, hung_up=True), AWAY) is Fate.CANCELLED
    missed = replace(CALL, error=DeadlineMissed("late"))
    assert fate(replace(missed, manner=Manner.HURRIED), AWAY) is Fate.CANCELLED
    assert fate(missed, AWAY) is Fate.FAILED


@pytest.mark.parametrize("error", [InvalidRequest("no"), QueueFull("full"), NoExecutor("nobody")])
def test_a_refusal_comes_before_any_piece(error: HeadraceError) -> None:
    assert fate(replace(CALL, error=error, num_pieces=0), AWAY) is Fate.REFUSED
    assert fate(replace(CALL, error=error), AWAY) is Fate.FAILED


@pytest.mark.parametrize(
    ("asked_s", "ended_s", "expected"),
    [(9.0, 10.5, Fate.CUT), (11.0, 20.0, Fate.CUT), (12.5, 13.0, Fate.FAILED), (29.0, 31.0, Fate.FAILED)],
)
def test_only_its_gateway_takes_a_call_with_it(asked_s: float, ended_s: float, expected: Fate) -> None:
    assert fate(replace(CALL, asked_s=asked_s, ended_s=ended_s, error=Unavailable("gone")), AWAY) is expected


def test_a_malformed_call_speaks_to_any_service() -> None:
    call = Ended(Manner.MALFORMED, 29.0, 31.0, error=Unavailable("gone"))
    assert fate(call, AWAY) is Fate.CUT
    assert fate(replace(call, error=EngineFault("internal error")), AWAY) is Fate.FAILED


def piece(index: int, *token_ids: int, finish: FinishReason = FinishReason.NONE, total: int | None = None) -> Piece:
    return Piece(
        request_id="r",
        index=index,
        text="",
        token_ids=token_ids,
        logprobs=(),
        finish_reason=finish,
        precision=Precision.ANY,
        usage=None if total is None else Usage(1, total, 0),
    )


def test_a_whole_answer() -> None:
    pieces = [
        piece(0, 1),
        piece(1, 2, finish=FinishReason.STOP),
        piece(0, 3, finish=FinishReason.LENGTH, total=3),
    ]
    assert fault_of(pieces, 2) == ""


@pytest.mark.parametrize(
    ("pieces", "n", "fault"),
    [
        ([], 1, "no usage"),
        ([piece(0, 1, finish=FinishReason.STOP)], 1, "no usage"),
        ([piece(0, 1, finish=FinishReason.STOP, total=1)], 2, "answer 1 of 2 did not end once"),
        ([piece(0, 1, finish=FinishReason.STOP), piece(0, 1, total=2)], 1, "did not end once"),
        (
            [piece(0, 1, finish=FinishReason.STOP), piece(0, 1, finish=FinishReason.STOP, total=2)],
            1,
            "did not end once",
        ),
        ([piece(0, 1, finish=FinishReason.PARTIAL, total=1)], 1, "ended with PARTIAL"),
        ([piece(0, 1, finish=FinishReason.STOP), piece(1, finish=FinishReason.STOP, total=1)], 1, "more answers"),
        ([piece(0, 1, 1, finish=FinishReason.STOP, total=1)], 1, "2 tokens came, 1 were counted"),
    ],
)
def test_what_is_wrong_with_others(pieces: list[Piece], n: int, fault: str) -> None:
    assert fault in fault_of(pieces, n)
