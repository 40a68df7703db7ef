"""A run: arrivals, the real machine, virtual executors and their faults, in virtual time, until everybody has ended."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from headrace.core.request import QosClass
from headrace.scheduler.policy.commands import Command, Dismiss, Dispatch, Drop, Refuse, Resume
from headrace.scheduler.policy.events import Occurrence, Request, Submitted, Withdrawn
from headrace.scheduler.policy.limits import Limits
from headrace.scheduler.policy.state import State
from headrace.simulator.clock import Clock, Phase
from headrace.simulator.continuous import ContinuousLoop
from headrace.simulator.executor import Device, Executor, Reporter, StepLoop
from headrace.simulator.job import Job, Outcome
from headrace.simulator.padded import PaddedLoop
from headrace.simulator.static import StaticLoop
from headrace.simulator.telemetry import Telemetry
from headrace.simulator.turns import Turns
from headrace.simulator.workload.arrival import Arrival

GATEWAY = "gateway"
FINEST_INTERVAL_S = 0.01
"""Of a burst nothing is to be seen by millions of intervals, and each costs."""
STALL_S = 3600.0
"""Without any step or end for so long, what is still open stays so, and the report says it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`time_s` from the start. `silent` crashes show by the lease alone."""

    kind: str  # crash, start or drain
    executor: int
    time_s: float
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a run needs beside its arrivals. `hop_s` is one message's way between services."""

    limits: Limits
    devices: tuple[Device, ...]
    duration_s: float
    model: str = "model"
    hop_s: float = 0.001
    one_class: bool = False
    static: bool = False
    faults: tuple[Fault, ...] = ()
    num_intervals: int = 120


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it. `ended_at` is the last end; `num_slots` are those of the whole fleet."""

    jobs: list[Job]
    telemetry: Telemetry
    duration_s: float
    ended_at: float
    num_slots: int
    num_turns: int


class World:
    """One run; `run` may be called once."""

    def __init__(self, setup: Setup, arrivals: Iterable[Arrival]) -> None:
        self._setup = setup
        self._clock = Clock()
        self._turns = Turns(self._clock, State(setup.limits), self._carry_out)
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._more = True
        self._padded = all(device.padding for device in setup.devices)
        self._jobs: list[Job] = []
        self._by_id: dict[str, Job] = {}  # the open ones
        self._last_end = 0.0
        self._progress = (0.0, 0)
        self.telemetry = Telemetry(interval_s=max(setup.duration_s / setup.num_intervals, FINEST_INTERVAL_S))
        self.telemetry.until_s = setup.duration_s
        self._executors = {
            f"e{number}": self._executor(f"e{number}", device) for number, device in enumerate(setup.devices)
        }

    def run(self) -> Run:
        """Until every request has ended, or nothing has moved for STALL_S."""
        for executor in self._executors.values():
            executor.start()
        for fault in self._setup.faults:
            self._clock.at(fault.time_s, partial(self._befall, fault))
        # those who enlist at the start are there before the first request comes
        self._clock.after(self._setup.hop_s, self._next_arrival, Phase.BOUNDARY)
        while (self._more or self._by_id) and not self._stalled() and self._clock.advance():
            pass
        num_slots = sum(device.num_slots for device in self._setup.devices)
        return Run(
            self._jobs,
            self.telemetry,
            self._setup.duration_s,
            self._last_end,
            num_slots,
            num_turns=self._turns.num_turns,
        )

    def _executor(self, executor_id: str, device: Device) -> Executor:
        setup = self._setup

        def new_loop(reporter: Reporter) -> StepLoop:
            if device.padding:
                return PaddedLoop(self._clock, device, self.telemetry, reporter)
            if setup.static:
                return StaticLoop(self._clock, device, self.telemetry, reporter, pause_s=2 * setup.hop_s)
            return ContinuousLoop(self._clock, device, self.telemetry, reporter)

        return Executor(
            self._clock,
            executor_id,
            setup.model,
            device,
            beat_s=setup.limits.lease_s / 3,
            post=self._post,
            on_end=self._end,
            new_loop=new_loop,
        )

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._more = False
        else:
            self._clock.at(arrival.time_s, partial(self._arrive, arrival))

    def _arrive(self, arrival: Arrival) -> None:
        number = len(self._jobs) + 1
        told = QosClass.NORMAL if self._setup.one_class else arrival.qos_class
        request = Request(
            serial=number,
            request_id=f"r{number}",
            gateway_id=GATEWAY,
            model=self._setup.model,
            prompt_tokens=arrival.prompt_tokens,
            max_output_tokens=0 if self._padded else arrival.max_output_tokens,
            qos_class=told,
            tenant=arrival.tenant,
            deadline_s=arrival.deadline_s,
        )
        output_tokens = 0 if self._padded else arrival.output_tokens
        job = Job(number, request, arrival.qos_class, output_tokens, self._clock.now)
        self._jobs.append(job)
        self._by_id[request.request_id] = job
        self.telemetry.arrived(self._clock.now)
        if arrival.patience_s is not None:
            self._clock.after(arrival.patience_s, partial(self._give_up, job))
        self._post(Submitted(request))
        self._next_arrival()

    def _give_up(self, job: Job) -> None:
        """A client that has waited long enough; a placement that crosses its word is void."""
        if job.outcome is Outcome.OPEN and not job.placed:
            self._end(job, Outcome.WITHDRAWN, "patience")
            self._post(Withdrawn(GATEWAY, job.request.request_id))

    def _befall(self, fault: Fault) -> None:
        executor = self._executors[f"e{fault.executor}"]
        effects: dict[str, Callable[[], None]] = {
            "crash": partial(executor.crash, silent=fault.silent),
            "start": executor.start,
            "drain": executor.drain,
        }
        effects[fault.kind]()

    def _post(self, occurrence: Occurrence) -> None:
        self._clock.after(self._setup.hop_s, partial(self._turns.receive, occurrence))

    def _carry_out(self, command: Command) -> None:
        match command:
            case Dispatch():
                executor = self._executors[command.executor_id]
                for member in command.members:
                    job = self._by_id.get(member.request.request_id)
                    if job is not None:
                        job.batch = command
                        self._clock.after(self._setup.hop_s, partial(executor.receive, job, member.displaced))
            case Resume():
                resume = partial(self._executors[command.executor_id].resume, command.request_ids)
                self._clock.after(self._setup.hop_s, resume)
            case Refuse():
                self._end_id(command.request.request_id, Outcome.REFUSED, command.refusal.kind.reason)
            case Drop():
                self._end_id(command.request.request_id, Outcome.WITHDRAWN, "dropped")
            case Dismiss():
                executor = self._executors[command.executor_id]
                if executor.alive:
                    self._clock.after(self._setup.hop_s, executor.enlist)
            case _:
                pass  # Renew, and what this world has no use for

    def _end_id(self, request_id: str, outcome: Outcome, reason: str) -> None:
        if job := self._by_id.get(request_id):
            self._end(job, outcome, reason)

    def _end(self, job: Job, outcome: Outcome, reason: str) -> None:
        if self._by_id.pop(job.request.request_id, None) is not None:
            job.outcome, job.reason = outcome, reason
            job.ended_at = self._last_end = self._clock.now

    def _stalled(self) -> bool:
        moved = self.telemetry.num_steps + len(self._jobs) - len(self._by_id) + len(self._jobs)
        if moved != self._progress[1] or self._more:
            self._progress = self._clock.now, moved
        return self._clock.now - self._progress[0] > STALL_S
