"""Requests that all come at once: an answer in a moment, whatever the length of their coming."""

from headrace.core.request import QosClass
from headrace.simulator.executor import Device
from headrace.simulator.policies import LIMITS
from headrace.simulator.workload.arrival import Arrival
from headrace.simulator.world import Setup, World


def test_a_burst_has_few_intervals() -> None:
    burst = [Arrival(0.0, QosClass.NORMAL, "", 100, 50, 50)] * 40
    world = World(Setup(LIMITS, (Device(),), duration_s=0.0), burst)
    done = world.run()
    assert all(job.total_s is not None for job in done.jobs)
    assert len(world.telemetry.cells) <= done.ended_at / 0.01 + 1
