"""Each bottleneck is named from the figures that it makes; a healthy suite has none."""

import pytest

from headrace.chassis.metric_table.table import TABLE as METRICS
from headrace.cli import diagnosis
from headrace.cli.diagnosis import diagnose
from headrace.cli.figures import Figures, parse

Page = dict[str, float]

HEALTHY: Page = {
    'headrace_executors{state="ready"}': 1,
    'headrace_kv_bytes{state="total"}': 1000,
    'headrace_kv_bytes{state="held"}': 300,
    "headrace_slots": 64,
    "headrace_slots_in_use": 30,
    'headrace_decode_step_seconds_total{rows="2"}': 1,
    'headrace_decode_step_tokens_total{rows="2"}': 200,
    'headrace_decode_step_seconds_total{rows="64"}': 3,
    'headrace_decode_step_tokens_total{rows="64"}': 3000,
    "headrace_usual_step_seconds_total": 4,
    'headrace_served{model="m",precision="int8",architecture="a"}': 1,
    'headrace_device_clock_hertz{kind="now"}': 2.8e9,
    'headrace_device_clock_hertz{kind="most"}': 3.4e9,
    "headrace_peak_tokens_per_second": 4000,
    'headrace_permits_limit{unit="requests"}': 1000,
    'headrace_permits_in_use{unit="requests"}': 40,
    "headrace_loop_busy_seconds_total": 5,
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
    "device full": {"headrace_slots_in_use": 64, 'headrace_queue_requests{class="normal"}': 9},
    "idle device with a queue": {
        "headrace_step_seconds_sum": 2,
        'headrace_queue_requests{class="batch"}': 9,
        'headrace_queue_age_seconds{class="batch"}': 4,
    },
    "throughput does not rise with batch": {'headrace_decode_step_tokens_total{rows="64"}': 700},
    "gateway is the limit": {"headrace_step_seconds_sum": 2, "headrace_loop_busy_seconds_total": 9.8},
    "straggler": {},
    "device slowed down": {"headrace_usual_step_seconds_total": 2},
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
BESIDE: dict[str, Page] = {
    "straggler": {
        'headrace_served{model="m",precision="int8",architecture="a"}': 1,
        'headrace_decode_step_seconds_total{rows="64"}': 1,
        'headrace_decode_step_tokens_total{rows="64"}': 3000,
    }
}
"""What another service of the same suite says."""


def _figures(page: Page, before: str = "") -> Figures:
    """Ten seconds in which every counter grew from nothing to what the page says."""
    return Figures(parse({"here": before}), parse({"here": _text(page)}), 10)


def _text(page: Page) -> str:
    return "".join(f"{name} {value}\n" for name, value in page.items())


def test_a_healthy_suite_has_nothing_wrong() -> None:
    assert diagnose(_figures(HEALTHY)) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    pages = [{**HEALTHY, **FAULTS[name]}, *([BESIDE[name]] if name in BESIDE else [])]
    assert [finding.name for finding in diagnose(_fleet(*pages))] == [name]


def test_every_row_of_the_table_is_provoked_here() -> None:
    assert len(FAULTS) == len(diagnosis.TABLE)


def test_the_pages_here_are_made_of_metrics_that_there_are() -> None:
    for page in (HEALTHY, *FAULTS.values(), *BESIDE.values()):
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


def _fleet(*pages: Page) -> Figures:
    """As _figures, of several services."""
    return Figures({}, parse({f"e:{number}": _text(page) for number, page in enumerate(pages)}), 10)


def test_one_idle_device_is_found_beside_busy_ones() -> None:
    """Together they compute 0.9 of the time of one; each device counts for itself."""
    busy: Page = {
        "headrace_step_seconds_sum": 9,
        "headrace_slots": 8,
        "headrace_slots_in_use": 8,
        'headrace_kv_bytes{state="total"}': 1000,
    }
    idle = {**busy, "headrace_step_seconds_sum": 0, "headrace_slots_in_use": 0}
    queue: Page = {'headrace_queue_requests{class="batch"}': 9, 'headrace_queue_age_seconds{class="batch"}': 4}
    (finding,) = diagnose(_fleet({**HEALTHY, **busy, **queue}, idle, idle))
    assert finding.name == "idle device with a queue"
    assert finding.evidence == "9 requests wait, the oldest for 4.0 s, while 2 of 3 devices compute 0% of the time"


def test_a_full_fleet_is_full_whatever_an_encoder_has_left() -> None:
    full: Page = {"headrace_slots": 8, "headrace_slots_in_use": 8, 'headrace_kv_bytes{state="total"}': 1000}
    queue: Page = {'headrace_queue_requests{class="batch"}': 9, 'headrace_queue_age_seconds{class="batch"}': 4}
    encoder: Page = {"headrace_slots": 64, "headrace_slots_in_use": 0, "headrace_step_seconds_sum": 0}
    (finding,) = diagnose(_fleet({**HEALTHY, **full, **queue}, full, encoder))
    assert (finding.name, finding.evidence) == ("device full", "16 of 16 slots taken, 9 requests wait")


def test_a_request_that_has_only_just_come_is_no_queue() -> None:
    page: Page = {'headrace_queue_requests{class="batch"}': 1, "headrace_step_seconds_sum": 0.1}
    assert diagnose(_figures({**HEALTHY, **page, "headrace_scheduling_seconds_total": 0})) == []


def test_the_executor_without_memory_is_named_beside_one_that_has_some() -> None:
    full: Page = {'headrace_kv_bytes{state="total"}': 100, 'headrace_kv_bytes{state="held"}': 97}
    finding = next(each for each in diagnose(_fleet(HEALTHY, full)) if each.name == "memory pressure")
    assert finding.evidence == "97% of KV memory at e:1 is promised"


@pytest.mark.parametrize(
    ("page", "advice"),
    [
        ({'headrace_kv_bytes{state="reserved"}': 680}, "max_tokens"),
        ({'headrace_kv_bytes{state="held"}': 990, "headrace_kv_fragmentation_ratio": 0.7}, "idle"),
        ({'headrace_kv_bytes{state="held"}': 990}, "kv_bytes"),
    ],
)
def test_memory_pressure_says_what_holds_it(page: Page, advice: str) -> None:
    (finding,) = diagnose(_figures({**HEALTHY, **page}))
    assert advice in finding.next_step


@pytest.mark.parametrize(
    ("page", "advice"),
    [
        ({}, "pinned"),
        (
            {'headrace_memory_read_bytes_total{what="kv"}': 9, 'headrace_memory_read_bytes_total{what="weights"}': 1},
            "kv_precision",
        ),
    ],
)
def test_flat_throughput_says_what_is_read(page: Page, advice: str) -> None:
    flat: Page = {'headrace_decode_step_tokens_total{rows="64"}': 700}
    (finding,) = diagnose(_figures({**HEALTHY, **flat, **page}))
    assert advice in finding.next_step
    assert "200 tokens/s with up to 2 rows, 233 with 64" in finding.evidence


def test_a_device_at_its_peak_gains_nothing_by_larger_batches_and_that_is_no_fault() -> None:
    flat: Page = {'headrace_decode_step_tokens_total{rows="64"}': 700, "headrace_peak_tokens_per_second": 300}
    assert diagnose(_figures({**HEALTHY, **flat})) == []


def test_a_straggler_is_told_by_steps_of_as_many_rows() -> None:
    """Its few steps of two rows are cheap, and no peer has had such."""
    (finding,) = diagnose(_fleet(HEALTHY, BESIDE["straggler"]))
    assert finding.evidence == "e:0 takes 1.0 ms a token in steps of as many rows as its peer that takes 0.3 ms"


@pytest.mark.parametrize(
    "other",
    [
        {'headrace_served{model="m",precision="int8",architecture="b"}': 1},
        {'headrace_served{model="n",precision="int8",architecture="a"}': 1},
        {'headrace_served{model="m",precision="fp32",architecture="a"}': 1},
    ],
    ids=["architecture", "model", "precision"],
)
def test_executors_that_should_not_be_as_fast_are_no_peers(other: Page) -> None:
    fast = {name: value for name, value in BESIDE["straggler"].items() if "served" not in name}
    assert diagnose(_fleet(HEALTHY, fast | other)) == []


@pytest.mark.parametrize(
    ("page", "evidence"),
    [
        ({'headrace_device_clock_hertz{kind="now"}': 1.1e9}, "e:0: its clock is 1.1 of 3.4 GHz"),
        ({'headrace_clock_limited_seconds_total{reason="heat"}': 4}, "e:0: heat holds its clock down 40% of the time"),
        (
            {"headrace_usual_step_seconds_total": 2},
            "e:0: steps take 2.0 times as long as before at the same shape",
        ),
    ],
    ids=["clock", "heat", "steps"],
)
def test_a_device_that_slowed_down_says_by_what_it_is_seen(page: Page, evidence: str) -> None:
    (finding,) = diagnose(_fleet({**HEALTHY, **page}))
    assert (finding.name, finding.evidence) == ("device slowed down", evidence)


def test_the_low_clock_of_an_idle_device_is_no_fault() -> None:
    idle: Page = {'headrace_device_clock_hertz{kind="now"}': 0.8e9, "headrace_step_seconds_sum": 2}
    assert diagnose(_figures({**HEALTHY, **idle})) == []


@pytest.mark.parametrize(("num_gateways", "advice"), [(1, "another gateway"), (2, "other gateways have time")])
def test_a_gateway_without_permits_is_the_limit_where_devices_have_room(num_gateways: int, advice: str) -> None:
    full: Page = {
        'headrace_permits_in_use{unit="requests"}': 990,
        'headrace_refusals_total{class="normal",reason="OVERLOADED"}': 12,
    }
    other: Page = {'headrace_permits_limit{unit="requests"}': 1000}
    (finding,) = diagnose(_fleet({**HEALTHY, **full}, *[other] * (num_gateways - 1)))
    assert finding.name == "gateway is the limit"
    assert finding.evidence == "e:0 refused 12 calls, its 1000 requests are taken, while 30 of 64 slots are"
    assert advice in finding.next_step
    full_device: Page = {"headrace_slots_in_use": 60}
    assert diagnose(_fleet({**HEALTHY, **full, **full_device})) == []
