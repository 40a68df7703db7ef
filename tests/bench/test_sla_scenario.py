"""How the sla scenario judges what it has seen."""

from pathlib import Path

import pytest

from headrace.benchmarks.lab import OUTPUT_TOKENS, Lab
from headrace.benchmarks.scenarios import sla
from headrace.core.model import ModelInfo
from headrace.models.repository import ModelEntry

WHOLE = tuple(range(OUTPUT_TOKENS))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, ModelEntry(ModelInfo("tiny", "decoder", "d", 512, 100, (0,)), tmp_path, "", "", ""), print)


def cut(
    handle: str, lag_ms: float = 1.0, partial: tuple[int, ...] = WHOLE[:3], whole: tuple[int, ...] = WHOLE
) -> sla.Cut:
    return sla.Cut(100, lag_ms, partial, handle, whole)


def test_lost_is_what_is_short_differs_or_is_gone(lab: Lab) -> None:
    cuts = [cut("good"), cut("short", whole=WHOLE[:-1]), cut("other", partial=(7,)), cut("gone"), cut("changed")]
    fetched = {"good": WHOLE, "short": WHOLE[:-1], "other": WHOLE, "changed": WHOLE[::-1]}
    report = sla.report(lab, cuts, fetched, num_whole=2)
    assert [figure.value for figure in report.figures] == [1.0, 4.0]
    assert report.rows[0].values["lost"] == "2"


def test_the_lag_is_the_p99(lab: Lab) -> None:
    cuts = [cut(str(number), lag_ms=float(number)) for number in range(200)]
    report = sla.report(lab, cuts, {each.handle: WHOLE for each in cuts}, num_whole=0)
    assert [figure.value for figure in report.figures] == [198.0, 0.0]


def test_nothing_cut_is_nothing_measured(lab: Lab) -> None:
    report = sla.report(lab, [], {}, num_whole=5)
    assert [figure.value for figure in report.figures] == [None, None]
    assert report.rows == []
