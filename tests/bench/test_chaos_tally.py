"""What counts as lost, twice and an error in `headrace bench chaos`, and a short run of it on the reference engine."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.benchmarks.disturbances import Disturbance, How
from headrace.benchmarks.lab import OUTPUT_TOKENS, Lab
from headrace.benchmarks.scenarios import chaos
from headrace.benchmarks.scenarios.chaos import Call, tally
from headrace.models import reference

WHOLE = Call((1, 2), 9.0, 11.0, tuple(range(OUTPUT_TOKENS)))
KILLS = [Disturbance("executor", How.KILLED, 10.0, 12.0), Disturbance("gateway", How.KILLED, 20.0, 22.0)]


def broken(asked_s: float, ended_s: float) -> Call:
    return replace(WHOLE, asked_s=asked_s, ended_s=ended_s, token_ids=(), error="UNAVAILABLE", unavailable=True)


def test_only_a_stream_of_the_killed_gateway_may_fail() -> None:
    calls = [WHOLE, broken(9.0, 11.0), broken(19.0, 20.5), broken(21.0, 21.1), broken(23.0, 24.0)]
    found = tally(KILLS, calls, [], [])
    assert (found.whole, found.cut, found.errors, found.lost) == (1, 1, 3, 0)


def test_an_answer_that_ends_short_is_lost() -> None:
    assert tally(KILLS, [replace(WHOLE, token_ids=(0, 1))], [], []).lost == 1


def test_an_answer_that_differs_in_peace_has_a_seam() -> None:
    again = replace(WHOLE, token_ids=(5,) * OUTPUT_TOKENS)
    assert tally(KILLS, [WHOLE], [WHOLE], [again]).twice == 1
    assert tally(KILLS, [WHOLE], [WHOLE], [WHOLE]).twice == 0
    longer = replace(WHOLE, token_ids=(*WHOLE.token_ids, 3))
    assert tally(KILLS, [longer], [longer], [WHOLE]).twice == 1


def test_what_has_no_answer_in_peace_is_not_compared() -> None:
    assert tally(KILLS, [WHOLE], [WHOLE], [WHOLE]).compared == 1
    assert tally(KILLS, [WHOLE], [WHOLE], [broken(30.0, 31.0)]).compared is None


async def test_a_fleet_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MODELS__HOME": str(tmp_path),
        "EXECUTOR__ENGINE": "reference",
        "EXECUTOR__REFERENCE_STEP_MS": "20",
        "EXECUTOR__NUM_SLOTS": "8",
        "TRANSPORT__DRAIN_S": "2",
    }.items():
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    said: list[str] = []
    lab = Lab(tmp_path, reference.install(tmp_path), said.append, window_s=1.0)
    report = await chaos.run(lab)
    assert [(figure.name, figure.value) for figure in report.figures] == [
        ("chaos.lost", 0.0),
        ("chaos.twice", 0.0),
        ("chaos.client_errors", 0.0),
    ], (said, report.raw)
