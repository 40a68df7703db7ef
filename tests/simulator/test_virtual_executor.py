"""What a virtual executor does with its time, step by step, in worlds that can be worked out on paper."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.request import QosClass
from headrace.executor import planner
from headrace.simulator.clock import Clock, Phase
from headrace.simulator.continuous import chunk_tokens
from headrace.simulator.executor import Device
from headrace.simulator.job import Outcome
from headrace.simulator.policies import POLICIES, limits_of
from headrace.simulator.step_times import StepTimes
from headrace.simulator.workload.arrival import Arrival
from headrace.simulator.world import Fault, Run, Setup, World

REALTIME, NORMAL, BATCH = QosClass

PAPER = StepTimes(base_s=1.0, per_decode_s=0.0, per_prefill_token_s=0.0, per_context_token_s=0.0)
"""Every step takes a second."""


def device(**changes: Any) -> Device:
    shape = {"num_slots": 2, "num_blocks": 100, "block_tokens": 10, "context_tokens": 1000, "step_tokens": 64}
    return Device(**{**shape, "times": PAPER, **changes})


def arrival(time_s: float, prompt: int, output: int, qos: QosClass = QosClass.NORMAL, **more: Any) -> Arrival:
    tenant = more.pop("tenant", "")
    return Arrival(time_s, qos, tenant, prompt, output, more.pop("most", output), **more)


RunWorld = Callable[..., Run]


@pytest.fixture
def run_world() -> RunWorld:
    """run_world(arrivals, devices, policy=..., settings=..., **setup): no message takes time unless hop_s says so."""

    def run(arrivals: list[Arrival], *devices: Device, policy: str = "default", **setup: Any) -> Run:
        chosen = POLICIES[policy]
        limits = limits_of(setup.pop("settings", {}), chosen.settings)
        setup = {"hop_s": 0.0, "duration_s": 100.0, **setup}
        whole = Setup(limits, devices or (device(),), one_class=chosen.one_class, static=chosen.static, **setup)
        return World(whole, arrivals).run()

    return run


def ends(run: Run) -> list[float | None]:
    return [job.ended_at for job in run.jobs]


def test_the_clock_goes_by_time_then_phase_then_plan() -> None:
    clock, seen = Clock(), []
    clock.at(2.0, lambda: seen.append("late"))
    clock.at(1.0, lambda: seen.append("step"), Phase.BOUNDARY)
    clock.at(1.0, lambda: (seen.append("first"), clock.after(0, lambda: seen.append("caused"))))
    clock.at(1.0, lambda: seen.append("second"))
    while clock.advance():
        pass
    assert seen == ["first", "second", "caused", "step", "late"]
    assert clock.now == 2.0


@pytest.mark.parametrize(
    ("decodes", "prefill", "context", "measured_s"),
    [(1, 0, 160, 0.009), (64, 0, 64 * 160, 0.034), (60, 512, 60 * 160, 0.155), (2, 514, 2 * 160, 0.150)],
)
def test_the_default_step_times_are_near_what_was_measured(
    decodes: int, prefill: int, context: int, measured_s: float
) -> None:
    assert StepTimes().seconds(decodes, prefill, context) == pytest.approx(measured_s, rel=0.07)


def test_a_request_alone(run_world: RunWorld) -> None:
    """100 prompt tokens in chunks of 64 take two steps, the second brings the first of five tokens."""
    (job,) = run_world([arrival(10.0, 100, 5)]).jobs
    assert (job.started_at, job.first_at, job.ended_at) == (10.0, 12.0, 16.0)
    assert (job.outcome, job.generated) == (Outcome.FINISHED, 5)


def test_messages_take_their_time(run_world: RunWorld) -> None:
    (job,) = run_world([arrival(10.0, 10, 1)], hop_s=0.25).jobs
    assert (job.started_at, job.ended_at) == (10.5, 11.5)


def test_a_step_is_as_long_as_what_is_in_it(run_world: RunWorld) -> None:
    """Prefill of 10: 1 + 10 * 0.5; then decodes over 11 and 12 tokens of context: 1 + 0.25 + 0.125 * context."""
    times = StepTimes(base_s=1.0, per_decode_s=0.25, per_prefill_token_s=0.5, per_context_token_s=0.125)
    (job,) = run_world([arrival(0.0, 10, 3)], device(times=times)).jobs
    assert job.first_at == 6.0
    assert job.ended_at == 6.0 + (1.25 + 11 / 8) + (1.25 + 12 / 8)


def test_decodes_go_on_beside_a_prefill_that_fits_what_they_leave(run_world: RunWorld) -> None:
    """The first decodes in every step; of 64 tokens 63 are left for the other's prompt of 126."""
    first, second = run_world([arrival(0.0, 10, 9), arrival(1.0, 126, 1)]).jobs
    assert first.ended_at == 9.0
    assert second.ended_at == 3.0


def test_prefills_go_by_class_then_arrival(run_world: RunWorld) -> None:
    arrivals = [arrival(0.0, 64, 1, BATCH), arrival(0.0, 64, 1, NORMAL), arrival(0.0, 64, 1, REALTIME)]
    assert ends(run_world(arrivals, device(num_slots=3))) == [3.0, 2.0, 1.0]


def test_chunks_are_those_of_the_real_planner() -> None:
    sizes = [(p, b, least) for p in range(1, 24) for b in range(-2, 24) for least in range(1, 6)]
    assert [chunk_tokens(*each) for each in sizes] == [planner.chunk_tokens(*each) for each in sizes]


def test_who_finds_no_slot_waits_for_one(run_world: RunWorld) -> None:
    run = run_world([arrival(0.0, 10, 5), arrival(0.0, 10, 5), arrival(0.0, 10, 5)])
    assert ends(run) == [5.0, 5.0, 10.0]
    assert run.telemetry.useful_tokens == run.telemetry.computed_tokens == 3 * (10 + 4)


def test_a_realtime_request_pauses_a_batch_one_which_then_goes_on(run_world: RunWorld) -> None:
    """It has 4 of 10 tokens when the other comes at 4, who takes 3 s; the pause is one gap of 4 s between tokens."""
    arrivals = [arrival(0.0, 10, 10, BATCH), arrival(3.5, 10, 3, REALTIME)]
    run = run_world(arrivals, device(num_slots=1))
    batch, realtime = run.jobs
    assert (realtime.started_at, realtime.ended_at) == (4.0, 7.0)
    assert (batch.ended_at, batch.num_displacements, batch.generated) == (13.0, 1, 10)
    assert (run.telemetry.num_displaced, run.telemetry.num_dropped, run.telemetry.num_resumed) == (1, 0, 1)
    gaps = run.telemetry.gaps[BATCH, ""]
    assert (gaps.weight, gaps.total, gaps.longest) == (9, 12.0, 4.0)
    assert run.telemetry.useful_tokens == run.telemetry.computed_tokens


def test_where_memory_is_short_the_paused_one_loses_its_kv_and_computes_it_again(run_world: RunWorld) -> None:
    """Of 5 blocks the first holds 4. With 4 tokens out it puts 14 in again, which brings the fifth: no step is lost."""
    arrivals = [arrival(0.0, 10, 10, BATCH, most=30), arrival(3.5, 10, 3, REALTIME, most=20)]
    run = run_world(arrivals, device(num_slots=1, num_blocks=5, context_tokens=50))
    batch, realtime = run.jobs
    assert (realtime.ended_at, batch.ended_at) == (7.0, 13.0)
    assert (run.telemetry.num_displaced, run.telemetry.num_dropped, run.telemetry.num_resumed) == (1, 1, 1)
    assert run.telemetry.computed_tokens - run.telemetry.useful_tokens == 13
    assert run.telemetry.gaps[BATCH, ""].weight == 9


def test_one_paused_in_its_prefill_goes_on_where_it_was(run_world: RunWorld) -> None:
    arrivals = [arrival(0.0, 200, 1, BATCH), arrival(1.5, 10, 1, REALTIME)]
    batch, realtime = run_world(arrivals, device(num_slots=1)).jobs
    assert realtime.ended_at == 3.0
    assert batch.ended_at == 5.0


def test_nobody_is_paused_where_the_policy_says_so(run_world: RunWorld) -> None:
    arrivals = [arrival(0.0, 10, 10, BATCH), arrival(3.5, 10, 3, REALTIME)]
    assert ends(run_world(arrivals, device(num_slots=1), policy="calm")) == [10.0, 13.0]


def test_a_static_batch_waits_for_its_longest(run_world: RunWorld) -> None:
    """Two slots: the third comes while the first two run, and waits until the longer of them has ended."""
    arrivals = [arrival(0.0, 10, 2), arrival(0.0, 30, 8), arrival(1.0, 10, 1)]
    run = run_world(arrivals, policy="static")
    assert ends(run) == [8.0, 8.0, 9.0]
    assert [job.first_at for job in run.jobs] == [1.0, 1.0, 9.0]
    assert [job.started_at for job in run.jobs] == [0.0, 0.0, 8.0]
    # prompts padded to 30, seven rounds of two rows; of these 8 decodes were somebody's
    assert run.telemetry.computed_tokens == 2 * 30 + 7 * 2 + 10
    assert run.telemetry.useful_tokens == 10 + 30 + 10 + 1 + 7


def test_continuous_batching_does_not(run_world: RunWorld) -> None:
    arrivals = [arrival(0.0, 10, 2), arrival(0.0, 30, 8), arrival(1.0, 10, 1)]
    assert ends(run_world(arrivals)) == [2.0, 8.0, 3.0]


def test_a_crash_loses_what_runs_and_the_other_executor_takes_the_rest(run_world: RunWorld) -> None:
    arrivals = [arrival(0.0, 10, 20), arrival(0.0, 10, 20), arrival(1.0, 10, 5)]
    one = device(num_slots=1)
    run = run_world(arrivals, one, one, faults=(Fault("crash", 0, 5.5),))
    assert sorted(job.outcome for job in run.jobs) == [Outcome.FINISHED, Outcome.FINISHED, Outcome.LOST]
    (lost,) = (job for job in run.jobs if job.outcome is Outcome.LOST)
    assert (lost.ended_at, lost.generated) == (5.5, 5)
    assert run.jobs[2].started_at == 20.0


def test_a_silent_crash_shows_by_the_lease_and_a_restart_serves_again(run_world: RunWorld) -> None:
    """What is sent there before the lease has ended is lost too."""
    arrivals = [arrival(0.0, 10, 20), arrival(6.0, 10, 5), arrival(12.0, 10, 5), arrival(31.0, 10, 5)]
    faults = (Fault("crash", 0, 5.5, silent=True), Fault("start", 0, 30.0))
    run = run_world(arrivals, faults=faults, settings={"lease_s": 3.0})
    outcomes = [Outcome.LOST, Outcome.LOST, Outcome.REFUSED, Outcome.FINISHED]
    assert [job.outcome for job in run.jobs] == outcomes
    assert run.jobs[2].reason == "NO_EXECUTOR"


def test_a_draining_executor_ends_what_it_has(run_world: RunWorld) -> None:
    run = run_world([arrival(0.0, 10, 20), arrival(6.0, 10, 5)], faults=(Fault("drain", 0, 5.0),))
    assert [job.outcome for job in run.jobs] == [Outcome.FINISHED, Outcome.REFUSED]


def test_a_client_without_patience_goes_away(run_world: RunWorld) -> None:
    arrivals = [arrival(0.0, 10, 20), arrival(1.0, 10, 5, patience_s=3.0), arrival(1.0, 10, 5, patience_s=30.0)]
    run = run_world(arrivals, device(num_slots=1))
    assert [job.outcome for job in run.jobs] == [Outcome.FINISHED, Outcome.WITHDRAWN, Outcome.FINISHED]
    assert run.jobs[1].ended_at == 4.0
    assert run.jobs[2].started_at == 20.0
