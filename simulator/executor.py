"""A virtual executor as the scheduler sees it: enlists, reports, beats, drains, crashes. A step loop does the work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.core.request import Precision
from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Displacement
from headrace.scheduler.policy.events import (
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    LoadedModel,
    Occurrence,
    Padding,
)
from headrace.simulator.clock import Clock
from headrace.simulator.job import Job, Outcome
from headrace.simulator.step_times import StepTimes

_MOST_SAMPLES = 8
"""Of a report; the latest."""


@dataclass(frozen=True, slots=True)
class Device:
    """Capacity of an executor and how fast it is. Tokens: of a block, of a context, of a step, of a prefill chunk.

    One with `padding` is an encoder's: each of its batches is a rectangle, and one step.
    """

    num_slots: int = 64
    num_blocks: int = 5_825
    block_tokens: int = 32
    context_tokens: int = 8_192
    step_tokens: int = 640
    min_chunk_tokens: int = 2
    times: StepTimes = field(default_factory=StepTimes)
    padding: Padding | None = None


class Reporter(Protocol):
    """What a step loop tells; `flush` ends a turn of it."""

    def started(self, job: Job) -> None: ...
    def ended(self, job: Job, outcome: Outcome, reason: str = "") -> None: ...
    def sampled(self, sample: StepSample) -> None: ...
    def flush(self) -> None: ...


class StepLoop(Protocol):
    """Runs jobs. `stop` forgets them all at once and gives those that had not ended."""

    def take(self, job: Job, displaced: Sequence[Displacement]) -> None: ...
    def resume(self, request_id: str) -> None: ...
    def running_ids(self) -> tuple[str, ...]: ...
    def paused_ids(self) -> tuple[str, ...]: ...
    def stop(self) -> list[Job]: ...


class Executor:
    """`post` sends to the scheduler, `on_end` tells of a job that has ended; `new_loop` makes a step loop."""

    def __init__(
        self,
        clock: Clock,
        executor_id: str,
        model: str,
        device: Device,
        *,
        beat_s: float,
        post: Callable[[Occurrence], None],
        on_end: Callable[[Job, Outcome, str], None],
        new_loop: Callable[[Reporter], StepLoop],
    ) -> None:
        self.executor_id = executor_id
        self.device = device
        self.alive = False
        self.draining = False
        self._clock = clock
        self._model = model
        self._beat_s = beat_s
        self._post = post
        self._on_end = on_end
        self._new_loop = new_loop
        self._loop = new_loop(self)
        self._started: list[str] = []
        self._finished: list[str] = []
        self._output_tokens: list[int] = []
        self._samples: list[StepSample] = []
        self._life = 0
        self._last_report = 0.0

    def start(self) -> None:
        """Comes up, for the first time or after a crash, with nothing running. One that is up goes on."""
        if self.alive:
            return
        self.alive, self.draining = True, False
        self._life += 1
        self._loop = self._new_loop(self)
        self.enlist()
        self._beat(self._life)

    def enlist(self) -> None:
        device = self.device
        self._started, self._finished, self._output_tokens, self._samples = [], [], [], []
        self._last_report = self._clock.now
        self._post(
            ExecutorEnlisted(
                self.executor_id,
                f"{self.executor_id}:0",
                (LoadedModel(self._model, Precision.FP32, device.context_tokens, device.padding),),
                num_slots=device.num_slots,
                num_blocks=device.num_blocks,
                block_tokens=device.block_tokens,
                running_ids=self._loop.running_ids(),
                paused_ids=self._loop.paused_ids(),
                draining=self.draining,
            )
        )

    def receive(self, job: Job, displaced: Sequence[Displacement]) -> None:
        """A placed job arrives; at an executor that is down it is lost."""
        if self.alive:
            self._loop.take(job, displaced)
        else:
            self._on_end(job, Outcome.LOST, "executor is down")

    def resume(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids if self.alive else ():
            self._loop.resume(request_id)

    def crash(self, *, silent: bool) -> None:
        """All that runs is lost. `silent`: nobody tells the scheduler, the lease has to end."""
        if not self.alive:
            return
        self.alive = False
        for job in self._loop.stop():
            self._on_end(job, Outcome.LOST, "executor crashed")
        if not silent:
            self._post(ExecutorLost(self.executor_id))

    def drain(self) -> None:
        """Ends what it has and takes no more."""
        if self.alive:
            self.draining = True
            self._report()

    def started(self, job: Job) -> None:
        self._started.append(job.request.request_id)

    def ended(self, job: Job, outcome: Outcome, reason: str = "") -> None:
        self._finished.append(job.request.request_id)
        self._output_tokens.append(job.generated)
        self._on_end(job, outcome, reason)

    def sampled(self, sample: StepSample) -> None:
        if len(self._samples) < _MOST_SAMPLES:
            self._samples.append(sample)
        else:
            self._samples[:-1] = self._samples[1:]
            self._samples[-1] = sample

    def flush(self) -> None:
        """Reports at once what has started and ended; steps wait for the next report."""
        if self._started or self._finished:
            self._report()

    def _report(self) -> None:
        self._last_report = self._clock.now
        self._post(
            ExecutorReported(
                self.executor_id,
                started_ids=tuple(self._started),
                finished_ids=tuple(self._finished),
                draining=self.draining,
                output_tokens=tuple(self._output_tokens),
                paused_ids=self._loop.paused_ids(),
                steps=tuple(self._samples),
            )
        )
        self._started, self._finished, self._output_tokens, self._samples = [], [], [], []

    def _beat(self, life: int) -> None:
        if not self.alive or life != self._life:
            return
        if self._clock.now >= self._last_report + self._beat_s:
            self._report()
        self._clock.at(self._last_report + self._beat_s, lambda: self._beat(life))
