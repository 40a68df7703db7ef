"""sched: what a decision of the scheduler's policy costs, with a thousand executors and up to 100,000 waiting.

The machine is driven alone, in one thread: no gRPC, no spans. All slots are taken and stay taken: an executor reports
an answer finished, which lets somebody go; reports that one started; and somebody new comes, one in ten of them
REALTIME, who displaces. Events come one by one, or as many as gather while the service is busy.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.measure import median
from headrace.chassis import collector
from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Command, Dispatch, Resume
from headrace.scheduler.policy.events import (
    ExecutorEnlisted,
    ExecutorReported,
    Gathered,
    LoadedModel,
    Occurrence,
    Request,
    Submitted,
)
from headrace.scheduler.policy.limits import Bounds, Limits
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State

NUM_EXECUTORS = 1000
NUM_SLOTS = 64
WAITING = (1_000, 100_000)
NUM_TENANTS = 100
NUM_EVENTS = 60_000
GATHERED = (1, 16)
_CLASSES = (QosClass.NORMAL, QosClass.BATCH)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured stretch."""

    num_waiting: int
    gathered: int
    num_events: int
    seconds: float

    @property
    def events_per_s(self) -> float:
        return self.num_events / self.seconds


class Fleet:
    """A state with every slot taken and so many waiting, and what happens to it next."""

    def __init__(self, num_waiting: int, seed: int, num_executors: int = NUM_EXECUTORS) -> None:
        self._random = random.Random(seed)
        self.state = State(Limits(Bounds(1_000_000, 10**12), lease_s=1e9, batch_tokens=16_384, start_timeout_s=1e9))
        self._serial = 0
        self._running: list[list[str]] = [[] for _ in range(num_executors)]
        self._to_start: deque[tuple[str, str]] = deque()
        loaded = (LoadedModel("m", Precision.INT8, 8192),)
        for number in range(num_executors):
            self._take(ExecutorEnlisted(f"e{number}", f"e{number}:1", loaded, NUM_SLOTS, 20_000, 32))
        for _ in range(num_executors * NUM_SLOTS + num_waiting):
            self._take(self._submitted(_CLASSES))
        while self._to_start:
            self._take(self._started())

    def events(self) -> Iterator[Occurrence]:
        """Without end: an answer finished, its successor started, somebody new."""
        everybody = (QosClass.REALTIME, *_CLASSES * 4, QosClass.NORMAL)
        while True:
            number = self._random.randrange(len(self._running))
            running = self._running[number]
            if running:
                index = self._random.randrange(len(running))
                running[index], running[-1] = running[-1], running[index]
                sample = (StepSample(NUM_SLOTS, 64, 0.05),)
                yield ExecutorReported(f"e{number}", finished_ids=(running.pop(),), output_tokens=(128,), steps=sample)
            if self._to_start:
                yield self._started()
            yield self._submitted(everybody)

    def take(self, events: Iterator[Occurrence], num_events: int, gathered: int) -> Sample:
        """Steps through so many events; making them is not measured."""
        seconds, taken = 0.0, 0
        while taken < num_events:
            batch = [next(events) for _ in range(gathered)]
            event = batch[0] if gathered == 1 else Gathered(tuple(batch))
            now = self.state.now + 1e-4
            begun = time.perf_counter()
            commands = step(self.state, event, now)
            seconds += time.perf_counter() - begun
            taken += gathered
            self._note(commands)
        return Sample(len(self.state.queues.by_id), gathered, taken, seconds)

    def _take(self, event: Occurrence) -> None:
        self._note(step(self.state, event, self.state.now + 1e-4))

    def _note(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                for member in command.members:
                    self._to_start.append((command.executor_id, member.request.request_id))
                    number = int(command.executor_id[1:])
                    gone = {each.request_id for each in member.displaced}
                    if gone:
                        self._running[number] = [each for each in self._running[number] if each not in gone]
            elif isinstance(command, Resume):
                self._running[int(command.executor_id[1:])] += command.request_ids

    def _started(self) -> Occurrence:
        executor_id, request_id = self._to_start.popleft()
        self._running[int(executor_id[1:])].append(request_id)
        return ExecutorReported(executor_id, started_ids=(request_id,))

    def _submitted(self, classes: tuple[QosClass, ...]) -> Submitted:
        self._serial += 1
        drawn = self._random
        request = Request(
            self._serial,
            f"r{self._serial}",
            f"g{self._serial % 4}",
            "m",
            prompt_tokens=drawn.randrange(16, 2048),
            max_output_tokens=drawn.randrange(16, 512),
            qos_class=drawn.choice(classes),
            tenant=f"t{drawn.randrange(NUM_TENANTS)}",
        )
        return Submitted(request)


async def run(lab: Lab) -> Report:
    """Every size and every gathering, `rounds` times in turns."""
    return await asyncio.to_thread(_measured, lab)


def _measured(lab: Lab) -> Report:
    collector.relax()  # as in the service's process
    samples: list[Sample] = []
    fleets = []
    for num_waiting in WAITING:
        lab.say(f"{NUM_EXECUTORS:,} executors, {num_waiting:,} waiting")
        fleet = Fleet(num_waiting, lab.seed)
        fleets.append((fleet, fleet.events()))
    for _ in range(lab.rounds):
        for gathered in GATHERED:
            samples += [fleet.take(events, NUM_EVENTS, gathered) for fleet, events in fleets]
    return report(lab, samples)


def report(lab: Lab, samples: list[Sample]) -> Report:
    """Medians over the rounds; growth compares the cost of an event, one by one, between the two sizes."""
    by_case: dict[tuple[int, int], list[float]] = {}
    for index, sample in enumerate(samples):
        by_case.setdefault((sample.gathered, WAITING[index % len(WAITING)]), []).append(sample.events_per_s)
    rates = {case: median(values) or 0.0 for case, values in by_case.items()}
    rows = [
        Row(f"{waiting:,} waiting", {"gathered": str(gathered), "events/s": f"{rate:,.0f}", "µs": f"{1e6 / rate:.1f}"})
        for (gathered, waiting), rate in sorted(rates.items())
    ]
    raw: list[dict[str, Any]] = [
        {"waiting": s.num_waiting, "gathered": s.gathered, "events": s.num_events, "seconds": s.seconds}
        for s in samples
    ]
    return Report(
        "sched",
        [
            Figure("sched.events_per_s", rates[GATHERED[-1], WAITING[-1]]),
            Figure("sched.growth", rates[1, WAITING[0]] / rates[1, WAITING[-1]]),
        ],
        rows,
        settings=lab.settings() | {"executors": NUM_EXECUTORS, "slots": NUM_SLOTS, "tenants": NUM_TENANTS},
        raw={"samples": raw},
        notes=["events_per_s: as they gather in a busy service, at the larger number waiting; growth: one by one"],
    )
