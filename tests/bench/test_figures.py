"""Figures against their goals, and the JSON that a scenario leaves."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from headrace.benchmarks.figures import GOALS, Figure, Report, Row
from headrace.benchmarks.machine import machine, versions
from headrace.benchmarks.scenarios.registry import SCENARIOS
from headrace.benchmarks.table import show


@pytest.mark.parametrize(
    ("name", "value", "met"),
    [
        ("saturate.ratio_best_peer", 1.3, True),
        ("saturate.ratio_best_peer", 1.29, False),
        ("saturate.ratio_best_peer", None, False),
        ("saturate.tokens_per_s", 1000.0, None),
        ("single.ttft_ratio_llamacpp", 1.0, True),
        ("single.ttft_ratio_llamacpp", 1.01, False),
        ("exact.mismatches", 0.0, True),
        ("exact.mismatches", 1.0, False),
    ],
)
def test_met(name: str, value: float | None, met: bool | None) -> None:
    assert Figure(name, value).met is met


def test_json_has_what_was_promised(tmp_path: Path) -> None:
    report = Report(
        "saturate",
        [Figure("saturate.ratio_best_peer", 1.5), Figure("saturate.tokens_per_s", 900.0)],
        [Row("headrace", {"tokens/s": "900"}), Row("vllm", note="its driver ended")],
        settings={"rounds": 3},
        versions={"vllm": {"torch": "2"}},
        machine=machine(),
        raw={"windows": {"headrace": [1, 2]}},
    )
    file = tmp_path / "deep" / "result.json"
    report.write(file)
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["figures"][0] == {
        "name": "saturate.ratio_best_peer",
        "value": 1.5,
        "unit": "x",
        "better": "higher",
        "goal": 1.3,
        "met": True,
    }
    assert content["settings"] == {"rounds": 3}
    assert content["raw"] == {"windows": {"headrace": [1, 2]}}
    assert content["machine"]["cores"] >= 1
    assert content["notes"] == ["vllm: its driver ended"], "a missing peer is named"
    assert list(file.parent.iterdir()) == [file]


def test_table_names_a_missing_peer_and_what_was_not_measured() -> None:
    console = Console(file=io.StringIO(), width=120)
    report = Report(
        "saturate",
        [Figure("saturate.ratio_best_peer", None), Figure("saturate.tokens_per_s", 1234.0)],
        [Row("headrace", {"tokens/s": "1,234"}), Row("vllm", note="no matching version")],
    )
    show(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("1,234", "no matching version", "not measured", "≥ 1.3", "no"):
        assert part in text


def test_every_reported_figure_has_a_goal_entry() -> None:
    assert {name for scenario in SCENARIOS.values() for name in scenario.figures} <= set(GOALS)


def test_versions_hold_python_and_this_package() -> None:
    assert {"python", "headrace"} <= set(versions())
