"""An encoder's executor: batches as the scheduler formed them, one after the other, each a rectangle of one step."""

from collections import deque
from collections.abc import Sequence as Many

from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Dispatch, Displacement
from headrace.simulator.clock import Clock, Phase
from headrace.simulator.executor import Device, Reporter
from headrace.simulator.job import Job, Outcome
from headrace.simulator.telemetry import Telemetry


class PaddedLoop:
    """Computes each batch's members at its padded length. Nobody is paused: a batch is one step."""

    def __init__(self, clock: Clock, device: Device, telemetry: Telemetry, reporter: Reporter) -> None:
        self._clock = clock
        self._device = device
        self._telemetry = telemetry
        self._reporter = reporter
        self._batches: deque[tuple[Dispatch, list[Job]]] = deque()  # the first of them runs while busy
        self._busy = self._stopped = False

    def take(self, job: Job, displaced: Many[Displacement]) -> None:
        """Members of a batch come at one moment, and the batch begins after it."""
        if job.batch is None:
            self._reporter.ended(job, Outcome.LOST, "sent without a batch")
            return
        if not self._batches or self._batches[-1][0] is not job.batch:
            self._batches.append((job.batch, []))
        self._batches[-1][1].append(job)
        self._reporter.started(job)
        if not self._busy:
            self._busy = True
            self._clock.after(0.0, self._begin, Phase.BOUNDARY)

    def resume(self, request_id: str) -> None:
        """Nobody is paused."""

    def running_ids(self) -> tuple[str, ...]:
        return tuple(job.request.request_id for _, jobs in self._batches for job in jobs)

    def paused_ids(self) -> tuple[str, ...]:
        return ()

    def stop(self) -> list[Job]:
        self._stopped = True
        return [job for _, jobs in self._batches for job in jobs]

    def _begin(self) -> None:
        if self._stopped:
            return
        if not self._batches:
            self._busy = False
            return
        dispatch, jobs = self._batches[0]
        now, telemetry = self._clock.now, self._telemetry
        tokens = dispatch.num_rows * dispatch.padded_tokens
        duration_s = self._device.times.seconds(0, tokens, 0)
        for job in jobs:
            job.started_at = now
        telemetry.stepped(now, duration_s, len(jobs), len(jobs))
        telemetry.computed_tokens += tokens
        telemetry.rows += dispatch.num_rows
        telemetry.possible_rows += dispatch.batch_rows
        telemetry.batches[dispatch.close_reason] += 1
        self._reporter.sampled(StepSample(0, tokens, duration_s))
        self._reporter.flush()
        self._clock.after(duration_s, self._end)

    def _end(self) -> None:
        if self._stopped:
            return
        now, telemetry = self._clock.now, self._telemetry
        _, jobs = self._batches.popleft()
        for job in jobs:
            job.first_at = job.last_at = now
            telemetry.useful_tokens += job.request.prompt_tokens
            telemetry.served(now, job.request.tenant, job.request.prompt_tokens)
            self._reporter.ended(job, Outcome.FINISHED)
        self._reporter.flush()
        self._clock.after(0.0, self._begin, Phase.BOUNDARY)
