"""Each bottleneck is named from the figures that it makes; a healthy suite has none."""

import io

import pytest
from rich.console import Console

from headrace.chassis.metric_table.table import TABLE as METRICS
from headrace.cli import diagnosis
from headrace.cli.diagnosis import diagnose
from headrace.cli.figures import Figures, parse
from headrace.cli.top import view

Page = dict[str, float]

HEALTHY: Page = {
    'headrace_executors{state="ready"}': 1,
    'headrace_kv_bytes{state="total"}': 1000,
    'headrace_kv_bytes{state="held"}': 300,
    "headrace_pool_slots": 64,
    "headrace_pool_slots_reserved": 30,
    "headrace_prepare_threads": 2,
    "headrace_step_seconds_sum": 8,
    "headrace_ttft_seconds_sum": 20,
    "headrace_ttft_seconds_count": 100,
    "headrace_prepare_seconds_sum": 0.2,
    "headrace_prepare_seconds_count": 100,
    "headrace_scheduling_seconds_total": 0.1,
    'headrace_screen_verdicts_total{verdict="pass"}': 100,
    "headrace_batches_total": 100,
}
FAULTS: dict[str, Page] = {
    "no executor": {'headrace_executors{state="ready"}': 0},
    "executor lost": {"headrace_requests_lost_total": 2},
    "memory pressure": {'headrace_kv_bytes{state="reserved"}': 680},
    "device full": {"headrace_pool_slots_reserved": 64, 'headrace_queue_requests{class="normal"}': 9},
    "idle device with a queue": {"headrace_step_seconds_sum": 2, 'headrace_queue_requests{class="batch"}': 9},
    "displacement storm": {"headrace_displacements_total": 80},
    "tokenizer saturated": {"headrace_prepare_waiting": 9},
    "slow first token: preprocess": {"headrace_prepare_seconds_sum": 15},
    "slow first token: screen": {"headrace_screen_held_seconds_sum": 10, "headrace_screen_held_seconds_count": 100},
    "screen without verdicts": {'headrace_screen_verdicts_total{verdict="none"}': 5},
    "late steps": {"headrace_late_steps_total": 3},
    "scheduling share high": {"headrace_scheduling_seconds_total": 2},
    "client reads slowly": {"headrace_unread_frames": 100, "headrace_gateway_running_requests": 4},
    "bucket edges gone wrong": {"headrace_batch_tokens_total": 9_000, "headrace_batch_padding_tokens_total": 9_000},
}


def _figures(page: Page, before: str = "") -> Figures:
    """Ten seconds in which every counter grew from nothing to what the page says."""
    return Figures(parse([before]), parse(["".join(f"{name} {value}\n" for name, value in page.items())]), 10)


def test_a_healthy_suite_has_nothing_wrong() -> None:
    assert diagnose(_figures(HEALTHY)) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    assert [finding.name for finding in diagnose(_figures({**HEALTHY, **FAULTS[name]}))] == [name]


def test_every_row_of_the_table_is_provoked_here() -> None:
    assert len(FAULTS) == len(diagnosis.TABLE)


def test_the_pages_here_are_made_of_metrics_that_there_are() -> None:
    for page in (HEALTHY, *FAULTS.values()):
        for name in page:
            bare = name.partition("{")[0]
            assert bare in METRICS or bare.removesuffix("_sum").removesuffix("_count") in METRICS, name


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    figures = _figures({"headrace_batches_total": 20}, before="headrace_batches_total 50\n")
    assert figures.grown("batches_total") == 20
    assert figures.rate("batches_total") == 2


def test_labels_that_are_not_named_are_summed_over() -> None:
    figures = _figures({'headrace_slots{a="1"}': 3, 'headrace_slots{a="2"}': 4})
    assert figures.level("slots") == 7
    assert figures.level("slots", a="2") == 4


def test_top_shows_classes_and_devices() -> None:
    out = io.StringIO()
    Console(width=140, file=out).print(view(_figures({**HEALTHY, 'headrace_queue_requests{class="batch"}': 41})))
    rows = {line.split()[0]: line.split() for line in out.getvalue().splitlines() if line.strip()}
    assert rows["realtime"][1] == "0"
    assert rows["batch"][1] == "41"
    assert "80%" in out.getvalue()
