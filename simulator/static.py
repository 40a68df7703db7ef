"""Static batching, to compare with: a batch runs, padded, until its longest member ends; only then comes the next.

The tokens of an answer stream as they are made; the answer is over, and its slot free, when the batch is.
"""

from collections import deque
from collections.abc import Sequence as Many

from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Displacement
from headrace.simulator.clock import Clock, Phase
from headrace.simulator.executor import Device, Reporter
from headrace.simulator.job import Job, Outcome
from headrace.simulator.telemetry import Telemetry


class StaticLoop:
    """Takes a slot's worth of jobs at most; whoever comes while a batch runs waits here for the next.

    `pause_s` after a batch is how long the scheduler's answer to its end takes.
    """

    def __init__(
        self, clock: Clock, device: Device, telemetry: Telemetry, reporter: Reporter, *, pause_s: float
    ) -> None:
        self._clock = clock
        self._device = device
        self._telemetry = telemetry
        self._reporter = reporter
        self._pause_s = pause_s
        self._waiting: deque[Job] = deque()
        self._batch: list[Job] = []
        self._round = 0
        self._busy = self._stopped = False

    def take(self, job: Job, displaced: Many[Displacement]) -> None:
        """Nobody is displaced in a static batch."""
        self._waiting.append(job)
        self._reporter.started(job)
        self._reporter.flush()
        if not self._busy:
            self._busy = True
            self._clock.after(0.0, self._begin, Phase.BOUNDARY)

    def resume(self, request_id: str) -> None:
        """Nobody is paused."""

    def running_ids(self) -> tuple[str, ...]:
        return tuple(job.request.request_id for job in (*self._batch, *self._waiting))

    def paused_ids(self) -> tuple[str, ...]:
        return ()

    def stop(self) -> list[Job]:
        self._stopped = True
        return [*self._batch, *self._waiting]

    def _begin(self) -> None:
        if self._stopped:
            return
        if not self._waiting:
            self._busy = False
            return
        self._batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._device.num_slots))]
        for job in self._batch:
            job.started_at = self._clock.now
        self._round = 0
        self._step(0, len(self._batch) * max(job.request.prompt_tokens for job in self._batch))

    def _step(self, num_decodes: int, prefill_tokens: int) -> None:
        longest = max(job.request.prompt_tokens for job in self._batch)
        context = num_decodes * (longest + self._round)
        duration_s = self._device.times.seconds(num_decodes, prefill_tokens, context)
        running = sum(job.output_tokens > self._round for job in self._batch)
        self._telemetry.stepped(self._clock.now, duration_s, len(self._batch), running)
        self._telemetry.computed_tokens += num_decodes + prefill_tokens
        self._reporter.sampled(StepSample(num_decodes, prefill_tokens, duration_s))
        self._clock.after(duration_s, lambda: self._end(duration_s))

    def _end(self, duration_s: float) -> None:
        if self._stopped:
            return
        now, telemetry = self._clock.now, self._telemetry
        first = self._round == 0
        self._round += 1
        longest = 0
        for job in self._batch:
            longest = max(longest, job.output_tokens)
            if job.output_tokens < self._round:
                continue
            job.generated, job.last_at = self._round, now
            if first:
                job.first_at = now
                telemetry.useful_tokens += job.request.prompt_tokens
                telemetry.served(now, job.request.tenant, job.request.prompt_tokens + 1)
            else:
                telemetry.useful_tokens += 1
                telemetry.gaps[job.qos_class, job.request.tenant].add(duration_s)
                telemetry.served(now, job.request.tenant, 1)
        if self._round < longest:
            self._step(len(self._batch), 0)
            return
        batch, self._batch = self._batch, []
        for job in batch:
            self._reporter.ended(job, Outcome.FINISHED)
        self._reporter.flush()
        self._clock.after(self._pause_s, self._begin, Phase.BOUNDARY)
