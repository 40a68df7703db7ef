"""Whole scenarios: nothing is lost from the books, nothing is left to chance, policies do what they are named for."""

from collections import Counter
from typing import Any

import pytest

from headrace.core.errors import InvalidRequest
from headrace.simulator.job import Outcome
from headrace.simulator.policies import POLICIES, limits_of
from headrace.simulator.report.fairness import fairness, jain, max_min_shares
from headrace.simulator.report.summary import Summary, summarise
from headrace.simulator.scenario import FOLDER, Scenario, load_scenario, parse_scenario
from headrace.simulator.simulate import run, simulate

LENGTHS = {"kind": "lognormal", "p50": 40, "p90": 120}


def rough(seed: int) -> Scenario:
    """Everything that can happen to a request: too many, impatient, with deadlines, and executors that come and go."""
    streams: list[dict[str, Any]] = [
        {"name": "vip", "classes": {"realtime": 1}, "arrivals": {"kind": "poisson", "load": 0.3}},
        {
            "name": "crowd",
            "classes": {"normal": 2, "batch": 1},
            "tenants": {"a": 3, "b": 1},
            "arrivals": {"kind": "on_off", "load": 2.0, "on_s": 7, "off_s": 5},
            "patience_s": 3,
        },
        {"name": "late", "arrivals": {"kind": "gamma", "load": 0.3, "cv": 3}, "deadline_s": 4},
    ]
    data = {
        "name": "rough",
        "seed": seed,
        "duration_s": 30,
        "fleet": [{"count": 2, "num_slots": 6, "num_blocks": 40, "context_tokens": 512}],
        "faults": [
            {"kind": "crash", "executor": 0, "at_s": 8},
            {"kind": "start", "executor": 0, "at_s": 12},
            {"kind": "crash", "executor": 1, "at_s": 15, "silent": True},
            {"kind": "start", "executor": 1, "at_s": 16},
            {"kind": "drain", "executor": 0, "at_s": 25},
        ],
        "streams": [{**stream, "prompt": LENGTHS, "output": LENGTHS, "max_output_tokens": 200} for stream in streams],
        "policy": {"max_waiting_requests": 25},
        "sla": {"realtime": {"ttft_s": 1}},
    }
    return parse_scenario(data, "rough")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_request_ends_in_one_way(policy: str, seed: int) -> None:
    result, _ = run(rough(seed), policy)
    counted = Counter(job.outcome for job in result.jobs)
    assert counted[Outcome.OPEN] == 0
    assert set(counted) == {Outcome.FINISHED, Outcome.REFUSED, Outcome.WITHDRAWN, Outcome.LOST}
    assert sum(counted.values()) == len(result.jobs)
    assert all(job.generated == job.output_tokens for job in result.jobs if job.outcome is Outcome.FINISHED)
    assert not any(job.generated for job in result.jobs if job.outcome in (Outcome.REFUSED, Outcome.WITHDRAWN))
    assert not any(job.reason == "no room on the executor" for job in result.jobs)
    telemetry = result.telemetry
    assert telemetry.num_resumed <= telemetry.num_displaced
    assert (telemetry.num_displaced > 0) is (policy == "default")


def test_whoever_is_displaced_ends() -> None:
    scenario = load_scenario("vip").model_copy(update={"duration_s": 60.0})
    result, _ = run(scenario, "default")
    displaced = [job for job in result.jobs if job.num_displacements]
    assert len(displaced) > 20
    assert {job.outcome for job in displaced} == {Outcome.FINISHED}
    assert result.telemetry.num_resumed == result.telemetry.num_displaced


def test_equal_seeds_equal_reports_and_policies_get_the_same_requests() -> None:
    def numbers(summary: Summary) -> dict[str, object]:
        return summary.as_json()

    assert numbers(simulate(rough(1), "default")) == numbers(simulate(rough(1), "default"))
    assert numbers(simulate(rough(1), "default")) != numbers(simulate(rough(2), "default"))
    asked = [
        [
            (job.arrived_at, job.qos_class, job.request.prompt_tokens, job.output_tokens)
            for job in run(rough(1), name)[0].jobs
        ]
        for name in ("default", "static")
    ]
    assert asked[0] == asked[1]


def test_fcfs_starts_in_the_order_of_arrival_and_reports_by_class() -> None:
    scenario = load_scenario("vip").model_copy(update={"duration_s": 20.0})
    result, _ = run(scenario, "fcfs")
    started = [job.started_at for job in result.jobs]
    assert started == sorted(started, key=lambda at: at or 0.0)
    assert {job.qos_class.name for job in result.jobs} == {"REALTIME", "NORMAL", "BATCH"}


def test_realtime_keeps_its_promise_in_a_flood_only_where_classes_count() -> None:
    scenario = load_scenario("vip").model_copy(update={"duration_s": 120.0})
    default, fcfs, static = (simulate(scenario, name) for name in ("default", "fcfs", "static"))
    met = [summary.by_class["realtime"].sla_met for summary in (default, fcfs, static)]
    assert met[0] is not None
    assert met[0] > 0.95
    assert met[1] is not None
    assert met[1] < 0.3
    assert static.fill is not None
    assert static.fill < 0.5
    assert default.fill == 1.0
    assert default.output_tokens_per_s > 2 * static.output_tokens_per_s


def test_the_small_tenant_gets_its_share() -> None:
    scenario = load_scenario("two_tenants").model_copy(update={"duration_s": 120.0})
    default, fcfs = simulate(scenario, "default"), simulate(scenario, "fcfs")
    assert default.fairness is not None
    assert fcfs.fairness is not None
    assert default.fairness > 0.99 > fcfs.fairness


def test_load_one_is_what_the_fleet_can_serve() -> None:
    """At twice saturation the run takes twice the time that requests came in, but for its start and end."""
    data = {
        "name": "double",
        "duration_s": 200,
        "streams": [
            {
                "name": "all",
                "arrivals": {"kind": "poisson", "load": 2.0},
                "prompt": {"kind": "fixed", "tokens": 200},
                "output": {"kind": "fixed", "tokens": 100},
            }
        ],
    }
    summary = simulate(parse_scenario(data, "double"), "fcfs")
    assert summary.ended_at_s == pytest.approx(400, rel=0.1)


def test_utilisation_and_tokens_over_time_add_up() -> None:
    result, _ = run(rough(1), "default")
    summary = summarise("default", result, {}, [])
    width = result.telemetry.interval_s
    slot_seconds = sum(part.utilisation for part in summary.intervals) * width * result.num_slots
    assert summary.utilisation * summary.ended_at_s * result.num_slots == pytest.approx(slot_seconds)
    assert sum(part.arrivals_rps for part in summary.intervals) * width == pytest.approx(summary.requests)
    assert sum(group.count for group in summary.by_class.values()) == summary.requests
    assert sum(group.count for group in summary.by_tenant.values()) == summary.requests


def test_jains_index_over_max_min_shares() -> None:
    assert max_min_shares({"a": 90, "b": 10}, 50) == {"b": 10, "a": 40}
    assert max_min_shares({"a": 90, "b": 40, "c": 5}, 65) == {"c": 5, "a": 30, "b": 30}
    assert jain([1, 1, 1, 1]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([]) is None
    assert fairness({"a": 90, "b": 10}, {"a": 40, "b": 10}) == 1
    assert fairness({"a": 90, "b": 10}, {"a": 50, "b": 0}) == 0.5


def test_settings_of_a_policy_are_checked() -> None:
    assert limits_of({"order": "fcfs"}, {"max_displacements": 0}).max_displacements == 0
    with pytest.raises(InvalidRequest, match=r"batch_share.*no_such"):
        limits_of({"batch_share": 7, "no_such": 1})
    with pytest.raises(InvalidRequest, match="lease_s"):
        limits_of({"lease_s": -1})


def test_a_scenario_may_bring_policies_of_its_own() -> None:
    data = load_scenario("vip").model_dump()
    data |= {"duration_s": 5, "policies": {"mine": {"settings": {"order": "strict"}}}}
    scenario = parse_scenario(data, "mine")
    assert simulate(scenario, "mine").requests > 0
    with pytest.raises(InvalidRequest, match=r"no policy 'hers'.*default.*mine"):
        scenario.policy_named("hers")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_each_scenario_of_the_suite_is_found_by_its_name(path: Any) -> None:
    assert load_scenario(path.stem).name == path.stem
