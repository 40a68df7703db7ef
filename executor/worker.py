"""The step loop: continuous batching over one engine, in one thread of its own.

Work comes in from any thread and takes effect at the next step boundary; what a step produced goes out by one callback
a step. It knows nothing of gRPC.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import EngineFault, HeadraceError, InvalidRequest
from headrace.core.request import FinishReason
from headrace.executor.engines.protocol import Engine, StepOutput
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.planner import Row, plan_rows
from headrace.executor.residents import Residents
from headrace.executor.sampler import Choice
from headrace.executor.sequence import Job, Sequence
from headrace.executor.step_plan import to_step_plan
from headrace.executor.step_result import Delta, StepResult

log = logging.getLogger(__name__)

_IDLE_RELEASE_S = 1.0  # how long without work until freed blocks' pages go back to the system
_PAUSED_LOOK_S = 0.05  # how often the deadlines of displaced requests are looked at while nothing runs
_MAX_CONSECUTIVE_FAULTS = 3
_KEPT_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Counts at one moment."""

    num_running: int
    num_waiting: int
    num_slots_in_use: int
    num_blocks_in_use: int
    num_steps: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepSample:
    """What one step took: sequences that decoded, prompt tokens beside them, seconds in the engine."""

    num_decodes: int
    prefill_tokens: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class _Cancel:
    session: int
    request_id: str | None


@dataclass(frozen=True, slots=True)
class _Resume:
    request_ids: tuple[str, ...]


class Worker:
    """Runs `engine` for up to `num_slots` sequences at once, `step_tokens` new tokens a step.

    `deliver(result)` is called from the worker's thread after each turn that produced something; `failed(error)` once
    if the loop must stop. While `alone` is set, displaced requests go on by themselves as slots allow. Use as a context
    manager: leaving joins the thread and returns all memory.
    """

    def __init__(
        self,
        engine: Engine,
        eos_token_ids: tuple[int, ...],
        *,
        num_slots: int,
        step_tokens: int,
        deliver: Callable[[StepResult], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.engine = engine
        self.num_slots = num_slots
        self.num_steps = 0
        self.num_tokens = 0
        self.alone = False
        self.pool = BlockPool(engine.spec.num_blocks, engine.spec.block_tokens)
        self._eos_token_ids = eos_token_ids
        self._step_tokens = step_tokens
        self._deliver = deliver
        self._failed = failed
        self._inbox: deque[Job | _Cancel | _Resume] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._residents = Residents(engine.spec, self.pool, num_slots, eos_token_ids)
        self._samples: deque[StepSample] = deque(maxlen=_KEPT_SAMPLES)
        self._faults = 0
        self._dirty = False
        # dummy rows fill steps of too few rows; they write to blocks of their own
        self._dummies = self.pool.reserve(engine.spec.min_rows)
        self._dummy_blocks = [self._dummies.take() for _ in range(engine.spec.min_rows)]
        self._base_blocks = self.pool.num_in_use
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    def __enter__(self) -> "Worker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()
        for block in self._dummy_blocks:
            self.pool.drop(block)
        self._dummies.release()

    def submit(self, job: Job) -> None:
        """Takes effect at the next step boundary; a refusal comes as a Delta with an error."""
        self._inbox.append(job)
        self._wake.set()

    def cancel(self, session: int, request_id: str | None = None) -> None:
        """Ends the request, or all of the session's, at the next step boundary. Unknown ones are ignored."""
        self._inbox.append(_Cancel(session, request_id))
        self._wake.set()

    def resume(self, request_ids: Iterable[str]) -> None:
        """Lets displaced requests go on at the first step boundary at which there is room. Unknown ones are ignored."""
        self._inbox.append(_Resume(tuple(request_ids)))
        self._wake.set()

    @property
    def paused_ids(self) -> tuple[str, ...]:
        """The requests that are displaced now."""
        return self._residents.paused_ids

    def take_samples(self) -> list[StepSample]:
        """Some of the steps since the last call, the newest."""
        samples = []
        while self._samples:
            samples.append(self._samples.popleft())
        return samples

    def status(self) -> WorkerStatus:
        residents = self._residents
        return WorkerStatus(
            num_running=residents.num_requests,
            num_waiting=len(self._inbox),
            num_slots_in_use=len(residents.running),
            num_blocks_in_use=self.pool.num_in_use - self._base_blocks,
            num_steps=self.num_steps,
            num_tokens=self.num_tokens,
        )

    def _run(self) -> None:
        result, residents = StepResult(), self._residents
        try:
            while not self._stopping:
                result = StepResult()
                self._take_inbox(result)
                residents.miss_deadlines(time.monotonic(), result)
                if result.started and residents.running:
                    self._deliver(result)  # before a step that may take long
                    result = StepResult()
                if residents.running:
                    self._step(result)
                if not result.empty:
                    self._deliver(result)
                if not residents.running and not self._inbox:
                    self._rest()
        except Exception as error:
            self._stop(error, result)
        finally:
            residents.release()

    def _stop(self, error: Exception, result: StepResult) -> None:
        """The loop cannot go on: whoever is in it or waits for it is told, after what `result` has already."""
        incident = secrets.token_hex(6)
        log.error("the step loop stops, incident %s", incident, exc_info=error)
        fault = EngineFault(f"the executor stops, incident {incident}")
        for sequence in (*self._residents.running, *self._residents.paused):
            sequence.finish = FinishReason.FAULT
            result.deltas.append(Delta(sequence.job, sequence.index, error=fault, sequence=sequence))
        self._residents.remove_finished(result)
        for message in self._inbox:
            if isinstance(message, Job):
                result.deltas.append(Delta(message, 0, error=fault))
                result.leave(message.request_id)
        self._inbox.clear()
        self._deliver(result)
        self._failed(error)

    def _rest(self) -> None:
        wait_s = _PAUSED_LOOK_S if self._residents.paused else _IDLE_RELEASE_S if self._dirty else None
        if not self._wake.wait(wait_s) and not self._residents.paused:
            freed = self.pool.drain_freed()
            if len(freed):
                self.engine.release_blocks(freed)
            self._dirty = False
        self._wake.clear()

    def _take_inbox(self, result: StepResult) -> None:
        residents = self._residents
        while self._inbox:
            match self._inbox.popleft():
                case Job() as job:
                    self._accept(job, result)
                case _Cancel(session, request_id):
                    residents.cancel(session, request_id, result)
                case _Resume(request_ids):
                    for request_id in request_ids:
                        residents.resume(request_id)
        if residents.paused:
            if self.alone:
                residents.resume_all()
            residents.take_up_resumed()

    def _accept(self, job: Job, result: StepResult) -> None:
        try:
            self._residents.accept(job)
        except HeadraceError as error:
            result.deltas.append(Delta(job, 0, error=error))
            if not isinstance(error, InvalidRequest) or error.field != "request_id":
                result.leave(job.request_id)
        else:
            result.started.append(job.request_id)
            self._dirty = True

    def _step(self, result: StepResult) -> None:
        spec, residents = self.engine.spec, self._residents
        rows = plan_rows(residents.running, self._step_tokens, spec.min_chunk_tokens)
        begun = time.perf_counter()
        try:
            for row in rows:
                row.sequence.table.ensure(row.past + row.num_tokens)
            output = self.engine.forward(to_step_plan(rows, spec, self._dummy_blocks))
        except Exception as error:
            self._fail(rows, error, result)
            return
        self._note(rows, time.perf_counter() - begun)
        wanted = 0
        best_ids, best_logits = output.best
        greedy = [
            token if finite else None
            for token, finite in zip(best_ids.tolist(), np.isfinite(best_logits).tolist(), strict=True)
        ]
        now_ns = time.time_ns()
        for row in rows:
            sequence = row.sequence
            sequence.past += row.num_tokens
            sequence.num_steps += 1
            if sequence.replayed and not sequence.prefilling:
                self._replay_forks(sequence)
            if row.last:
                if not sequence.num_answer_tokens:
                    sequence.first_token_ns = now_ns
                    self._fork(sequence, output, wanted, result)
                self._choose(sequence, output, wanted, greedy[wanted], result)
                wanted += 1
        residents.remove_finished(result)

    def _note(self, rows: list[Row], duration_s: float) -> None:
        self._faults = 0
        self.num_steps += 1
        num_tokens = sum(row.num_tokens for row in rows)
        self.num_tokens += num_tokens
        num_decodes = sum(row.num_tokens == 1 for row in rows)
        self._samples.append(StepSample(num_decodes, num_tokens - num_decodes, duration_s))

    def _fork(self, first: Sequence, output: StepOutput, row: int, result: StepResult) -> None:
        """The other answers begin where the prompt ends, over its blocks."""
        for index in range(1, first.job.sampling.n):
            table = first.table.fork(first.past, first.for_forks.pop(), self.engine.copy_block)
            answer = self._residents.new_sequence(first.job, index, table, first.arrival)
            answer.past = first.past
            answer.accepted_ns, answer.first_token_ns = first.accepted_ns, first.first_token_ns
            self._residents.running.append(answer)
            self._choose(answer, output, row, None, result)

    def _replay_forks(self, first: Sequence) -> None:
        """Answers whose KV was dropped begin again where the prompt ends, with their tokens to be replayed."""
        for answer in first.replayed:
            answer.table = first.table.fork(first.past, first.for_forks.pop(), self.engine.copy_block)
            answer.past = first.past
            self._residents.running.append(answer)
        first.replayed = []

    def _choose(self, sequence: Sequence, output: StepOutput, row: int, greedy: int | None, result: StepResult) -> None:
        """Chooses the row's next token; `greedy` is the row's best one where that is known to be a number."""
        sampler, sampling = sequence.sampler, sequence.job.sampling
        if greedy is not None and sampler.plain_greedy:
            choice = Choice(greedy, 0.0, ())
        else:
            try:
                choice = sampler.choose(output, row)
            except HeadraceError as error:
                sequence.finish = FinishReason.FAULT
                result.deltas.append(Delta(sequence.job, sequence.index, error=error, sequence=sequence))
                return
        token_id = choice.token_id
        sampler.accept(token_id)
        sequence.append(token_id)
        count = sequence.num_answer_tokens
        stops = token_id in sampling.stop_token_ids or (token_id in self._eos_token_ids and not sampling.ignore_eos)
        if stops and count >= sampling.min_tokens:
            sequence.finish = FinishReason.STOP
        elif count >= sampling.max_tokens:
            sequence.finish = FinishReason.LENGTH
        result.deltas.append(Delta(sequence.job, sequence.index, choice, sequence.finish, sequence=sequence))

    def _fail(self, rows: Iterable[Row], error: Exception, result: StepResult) -> None:
        """The engine failed in a step: its members fail, the others go on. Again and again: the loop stops."""
        incident = secrets.token_hex(6)
        log.error("engine fault, incident %s", incident, exc_info=error)
        fault = EngineFault(f"engine fault, incident {incident}")
        for sequence in dict.fromkeys(row.sequence for row in rows):
            sequence.finish = FinishReason.FAULT
            result.deltas.append(Delta(sequence.job, sequence.index, error=fault, sequence=sequence))
        self._residents.remove_finished(result)
        self._faults += 1
        if self._faults >= _MAX_CONSECUTIVE_FAULTS:
            raise error
