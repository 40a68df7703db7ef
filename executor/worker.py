"""The step loop: continuous batching over one engine, in one thread of its own.

It owns sequences, slots and KV blocks. Work comes in by `submit` and `cancel` from any thread and takes effect at the
next step boundary; what a step produced goes out by one callback a step. It knows nothing of gRPC.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from headrace.core.errors import DeadlineMissed, EngineFault, HeadraceError, InvalidRequest, PoolExhausted
from headrace.core.request import FinishReason
from headrace.executor.engines.protocol import Engine, StepOutput, StepPlan
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.planner import Row, plan_rows
from headrace.executor.sampler import Choice, SequenceSampler
from headrace.executor.sequence import Job, Sequence

log = logging.getLogger(__name__)

_IDLE_RELEASE_S = 1.0  # how long without work until freed blocks' pages go back to the system
_MAX_CONSECUTIVE_FAULTS = 3


@dataclass(frozen=True, slots=True)
class Delta:
    """One sequence's new token, its end, or its failure. `sequence` is for the trace: its times and counts."""

    job: Job
    index: int
    choice: Choice | None = None
    finish: FinishReason = FinishReason.NONE
    error: HeadraceError | None = None
    sequence: Sequence | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one turn of the loop produced: deltas in order, requests that left altogether."""

    deltas: list[Delta] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Counts at one moment."""

    num_running: int
    num_waiting: int
    num_slots_in_use: int
    num_blocks_in_use: int
    num_steps: int
    num_tokens: int


class Worker:
    """Runs `engine` for up to `num_slots` sequences at once, `step_tokens` new tokens a step.

    `deliver(result)` is called from the worker's thread after each turn that produced something; `failed(error)` once
    if the loop must stop. Use as a context manager: leaving joins the thread and returns all memory.
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
        self.pool = BlockPool(engine.spec.num_blocks, engine.spec.block_tokens)
        self._eos_token_ids = eos_token_ids
        self._step_tokens = step_tokens
        self._deliver = deliver
        self._failed = failed
        self._inbox: deque[Job | tuple[int, str | None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._sequences: list[Sequence] = []
        self._open_answers: dict[tuple[int, str], int] = {}
        self._arrivals = 0
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
        self._inbox.append((session, request_id))
        self._wake.set()

    def status(self) -> WorkerStatus:
        return WorkerStatus(
            num_running=len(self._open_answers),
            num_waiting=len(self._inbox),
            num_slots_in_use=len(self._sequences),
            num_blocks_in_use=self.pool.num_in_use - self._base_blocks,
            num_steps=self.num_steps,
            num_tokens=self.num_tokens,
        )

    def _run(self) -> None:
        result = StepResult()
        try:
            while not self._stopping:
                result = StepResult()
                self._take_inbox(result)
                self._miss_deadlines(result)
                if self._sequences:
                    self._step(result)
                if result.deltas or result.started or result.finished:
                    self._deliver(result)
                if not self._sequences and not self._inbox:
                    self._rest()
        except Exception as error:
            self._stop(error, result)
        finally:
            for sequence in self._sequences:
                sequence.release()
            self._sequences.clear()
            self._open_answers.clear()

    def _stop(self, error: Exception, result: StepResult) -> None:
        """The loop cannot go on: whoever is in it or waits for it is told, after what `result` has already."""
        incident = secrets.token_hex(6)
        log.error("the step loop stops, incident %s", incident, exc_info=error)
        fault = EngineFault(f"the executor stops, incident {incident}")
        for sequence in self._sequences:
            sequence.finish = FinishReason.FAULT
            result.deltas.append(Delta(sequence.job, sequence.index, error=fault, sequence=sequence))
        self._remove_finished(result)
        for message in self._inbox:
            if isinstance(message, Job):
                result.deltas.append(Delta(message, 0, error=fault))
                result.finished.append(message.request_id)
        self._inbox.clear()
        self._deliver(result)
        self._failed(error)

    def _rest(self) -> None:
        if not self._wake.wait(_IDLE_RELEASE_S if self._dirty else None):
            freed = self.pool.drain_freed()
            if len(freed):
                self.engine.release_blocks(freed)
            self._dirty = False
        self._wake.clear()

    def _take_inbox(self, result: StepResult) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Job):
                try:
                    self._accept(message)
                    result.started.append(message.request_id)
                except HeadraceError as error:
                    result.deltas.append(Delta(message, 0, error=error))
                    if not isinstance(error, InvalidRequest) or error.field != "request_id":
                        result.finished.append(message.request_id)
            else:
                session, request_id = message
                for sequence in self._sequences:
                    if sequence.job.session == session and request_id in (None, sequence.job.request_id):
                        sequence.finish = FinishReason.CANCELLED
                self._remove_finished(result)

    def _accept(self, job: Job) -> None:
        """Reserves slots and blocks for all answers of the request, or raises."""
        spec, sampling, prompt = self.engine.spec, job.sampling, job.prompt_ids
        if (job.session, job.request_id) in self._open_answers:
            raise InvalidRequest(f"request {job.request_id} is running already", field="request_id", limit="unique")
        if not len(prompt):
            raise InvalidRequest("the prompt is empty", field="token_ids", limit=">= 1 token")
        if int(prompt.max()) >= spec.vocab_size:
            raise InvalidRequest(
                f"token id {int(prompt.max())} is outside the vocabulary",
                field="token_ids",
                limit=f"0..{spec.vocab_size - 1}",
            )
        total = len(prompt) + sampling.max_tokens
        if total > spec.context_tokens:
            raise InvalidRequest(
                f"prompt {len(prompt)} and answer {sampling.max_tokens} tokens are more than the context",
                field="sampling.max_tokens",
                limit=f"{spec.context_tokens} tokens together",
            )
        sampling.validate(spec.vocab_size)
        if len(self._sequences) + self._forks_to_come() + sampling.n > self.num_slots:
            raise PoolExhausted(
                f"{sampling.n} slots are wanted, {self.num_slots - len(self._sequences)} of {self.num_slots} are free"
            )
        blocks = -(-total // spec.block_tokens)
        own = blocks - len(prompt) // spec.block_tokens  # what each further answer does not share
        with ExitStack() as refused:
            reservations = [refused.enter_context(self.pool.reserve(blocks))]
            reservations += [refused.enter_context(self.pool.reserve(own)) for _ in range(1, sampling.n)]
            refused.pop_all()  # all or none
        self._arrivals += 1
        self._open_answers[job.session, job.request_id] = sampling.n
        sequence = self._new_sequence(job, 0, BlockTable(self.pool, reservations[0]))
        sequence.for_forks = reservations[1:]
        self._sequences.append(sequence)
        self._dirty = True

    def _forks_to_come(self) -> int:
        return sum(sequence.job.sampling.n - 1 for sequence in self._sequences if sequence.prefilling)

    def _new_sequence(self, job: Job, index: int, table: BlockTable) -> Sequence:
        token_ids = np.zeros(len(job.prompt_ids) + job.sampling.max_tokens, np.int64)
        token_ids[: len(job.prompt_ids)] = job.prompt_ids
        sampler = SequenceSampler(job.sampling, index, job.prompt_ids, self._eos_token_ids, self.engine.spec.vocab_size)
        return Sequence(job, index, self._arrivals, table, sampler, token_ids, len(job.prompt_ids))

    def _miss_deadlines(self, result: StepResult) -> None:
        now = time.monotonic()
        late = False
        for sequence in self._sequences:
            deadline = sequence.job.deadline
            if deadline is not None and now >= deadline:
                sequence.finish = FinishReason.DEADLINE
                late = True
        if late:
            self._remove_finished(result)

    def _step(self, result: StepResult) -> None:
        spec = self.engine.spec
        rows = plan_rows(self._sequences, self._step_tokens, spec.min_chunk_tokens)
        try:
            for row in rows:
                row.sequence.table.ensure(row.sequence.past + row.num_tokens)
            output = self.engine.forward(self._plan(rows))
        except Exception as error:
            self._fail(rows, error, result)
            return
        self._faults = 0
        self.num_steps += 1
        self.num_tokens += sum(row.num_tokens for row in rows)
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
            if row.last:
                if not sequence.num_answer_tokens:
                    sequence.first_token_ns = now_ns
                    self._fork(sequence, output, wanted, result)
                self._choose(sequence, output, wanted, greedy[wanted], result)
                wanted += 1
        self._remove_finished(result)

    def _plan(self, rows: list[Row]) -> StepPlan:
        spec = self.engine.spec
        num_dummies = max(0, spec.min_rows - len(rows))
        lengths = [row.num_tokens for row in rows] + [1] * num_dummies
        tokens = [row.sequence.token_ids[row.sequence.past : row.sequence.past + row.num_tokens] for row in rows]
        tables = [
            row.sequence.table.blocks[: -(-(row.sequence.past + row.num_tokens) // spec.block_tokens)] for row in rows
        ]
        if num_dummies:
            tokens.append(np.ones(num_dummies, np.int64))
            tables += [np.array([block], np.int32) for block in self._dummy_blocks[:num_dummies]]
        begins = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=begins[1:])
        block_begins = np.zeros(len(tables) + 1, np.int32)
        np.cumsum([len(table) for table in tables], out=block_begins[1:])
        last = np.fromiter((row.last for row in rows), bool, len(rows))
        wanted = begins[1 : len(rows) + 1][last] - 1
        if not len(wanted):
            wanted = begins[1:2] - 1  # engines want at least one; nobody reads it
        return StepPlan(
            token_ids=np.concatenate(tokens),
            past_lens=np.array([row.sequence.past for row in rows] + [0] * num_dummies, np.int32),
            subsequence_begins=begins,
            block_indices=np.concatenate(tables),
            block_indices_begins=block_begins,
            wanted_tokens=wanted.astype(np.int64),
        )

    def _fork(self, first: Sequence, output: StepOutput, row: int, result: StepResult) -> None:
        """The other answers begin where the prompt ends, over its blocks."""
        for index in range(1, first.job.sampling.n):
            table = first.table.fork(first.past, first.for_forks.pop(), self.engine.copy_block)
            answer = self._new_sequence(first.job, index, table)
            answer.past = first.past
            answer.accepted_ns, answer.first_token_ns = first.accepted_ns, first.first_token_ns
            self._sequences.append(answer)
            self._choose(answer, output, row, None, result)

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

    def _remove_finished(self, result: StepResult) -> None:
        """Frees what the ended sequences held; a request has left when its last answer has."""
        if all(sequence.finish is FinishReason.NONE for sequence in self._sequences):
            return
        faulty = {
            (s.job.session, s.job.request_id)
            for s in self._sequences
            if s.finish in (FinishReason.FAULT, FinishReason.CANCELLED, FinishReason.DEADLINE)
        }
        staying = []
        for sequence in self._sequences:
            key = sequence.job.session, sequence.job.request_id
            if sequence.finish is FinishReason.NONE and key not in faulty:
                staying.append(sequence)
                continue
            sequence.release()
            if key in faulty:
                if self._open_answers.pop(key, 0):
                    result.finished.append(sequence.job.request_id)
                    if sequence.finish is FinishReason.DEADLINE:
                        error = DeadlineMissed("the deadline passed while generating")
                        result.deltas.append(Delta(sequence.job, sequence.index, error=error, sequence=sequence))
                    elif sequence.finish is FinishReason.CANCELLED:
                        result.deltas.append(
                            Delta(sequence.job, sequence.index, finish=sequence.finish, sequence=sequence)
                        )
                continue
            self._open_answers[key] -= 1
            if not self._open_answers[key]:
                del self._open_answers[key]
                result.finished.append(sequence.job.request_id)
        self._sequences = staying

    def _fail(self, rows: Iterable[Row], error: Exception, result: StepResult) -> None:
        """The engine failed in a step: its members fail, the others go on. Again and again: the loop stops."""
        incident = secrets.token_hex(6)
        log.error("engine fault, incident %s", incident, exc_info=error)
        for row in rows:
            row.sequence.finish = FinishReason.FAULT
            result.deltas.append(
                Delta(
                    row.sequence.job,
                    row.sequence.index,
                    error=EngineFault(f"engine fault, incident {incident}"),
                    sequence=row.sequence,
                )
            )
        self._remove_finished(result)
        self._faults += 1
        if self._faults >= _MAX_CONSECUTIVE_FAULTS:
            raise error
