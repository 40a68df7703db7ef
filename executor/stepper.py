"""One step of the engine: its rows in, the next tokens chosen, answers forked where a prompt ends.

It owns the dummy rows' blocks and the counts of steps; who runs is `Residents`' to say. It never waits.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import numpy as np

from headrace.core.errors import DeviceFault, EngineFault, HeadraceError, PoolExhausted
from headrace.core.request import FinishReason
from headrace.core.step_model import StepModel, StepSample
from headrace.executor.engines.protocol import Engine, StepOutput, WaitingEngine
from headrace.executor.event_wait import Overdue, OverdueWait
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.memory.pinned import AlignedMemory, HostMemory, PinnedPool
from headrace.executor.pace import step_budget
from headrace.executor.planner import Row, plan_rows
from headrace.executor.prefixes import publish
from headrace.executor.residents import Residents
from headrace.executor.sampler import Choice
from headrace.executor.sequence import Sequence
from headrace.executor.speculator import Speculator
from headrace.executor.staging import staging_bytes, staging_rows
from headrace.executor.step_plan import to_step_plan
from headrace.executor.step_reading import Stepped, StepReading, nobody
from headrace.executor.step_result import Delta, StepResult

log = logging.getLogger(__name__)

_ALIGNED = AlignedMemory()
_MAX_CONSECUTIVE_FAULTS = 3
_KEPT_SAMPLES = 8
_KNOWN_STEPS = 64
_MOST_OVERDUE = 16  # that a sequence keeps


class Stepper:
    """Steps of up to `step_tokens` new tokens for the running among `residents`; `release` returns what it holds.

    `inter_token_s` are the seconds between tokens that streams are to keep, by priority number. `stepped` is told of
    each step that went well, `overdue` of each wait for the device that lasts too long. Up to `speculation` tokens of a
    sequence are guessed, where the engine is exact. Plans lie in `host_memory`.
    """

    def __init__(
        self,
        engine: Engine,
        residents: Residents,
        pool: BlockPool,
        eos_token_ids: tuple[int, ...],
        step_tokens: int,
        inter_token_s: Mapping[int, float] | None = None,
        stepped: Stepped = nobody,
        speculation: int = 0,
        host_memory: HostMemory = _ALIGNED,
        overdue: Overdue = lambda wait: None,
    ) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.num_late_masks = 0
        self._engine = engine
        self._residents = residents
        self._pool = pool
        self._eos_token_ids = eos_token_ids
        self._step_tokens = step_tokens
        self._inter_token_s = inter_token_s or {}
        self._step_model = StepModel()
        # only an exact engine promises that rows over one table give what steps one after the other would
        self.speculator = Speculator(speculation if engine.spec.exact else 0, engine.spec.min_rows)
        self._stepped = stepped
        self._samples: deque[StepSample] = deque(maxlen=_KEPT_SAMPLES)
        self._faults = 0
        self._in_step: list[Row] = []
        self._overdue = overdue
        if isinstance(engine, WaitingEngine):
            engine.report_overdue(self._is_overdue)
        # dummy rows fill steps of too few rows; they write to blocks of their own
        with pool.reserve(engine.spec.min_rows) as dummies:
            self._dummy_blocks = [dummies.take() for _ in range(engine.spec.min_rows)]
        self._held = ExitStack()
        # two, in turns: a plan is made while the engine still reads the last one
        pinned = self._held.enter_context(PinnedPool(host_memory, 2, staging_bytes(engine.spec, step_tokens)))
        buffers = [self._held.enter_context(pinned.buffer()) for _ in range(2)]
        self._staging = [staging_rows(buffer, engine.spec, step_tokens) for buffer in buffers]

    def release(self) -> None:
        """Returns the dummy rows' blocks and the staging memory. Harmless when repeated."""
        for block in self._dummy_blocks:
            self._pool.drop(block)
        self._dummy_blocks = []
        self._staging = []
        self._held.close()

    def take_samples(self) -> list[StepSample]:
        """Some of the steps since the last call, the newest. From any thread."""
        samples = []
        while self._samples:
            samples.append(self._samples.popleft())
        return samples

    def step(self, result: StepResult) -> bool:
        """Runs the engine once; False, at once, where everybody's guide has to be waited for. A failing engine fails
        the step's members; raises once it has failed again and again, where its output cannot be read, and DeviceFault
        at once: its members then go on elsewhere."""
        spec, residents = self._engine.spec, self._residents
        ready = [each for each in residents.running if each.guide is None or not each.guide.holds]
        if not ready:
            return False
        budget = step_budget(self._step_model, ready, self._inter_token_s, self._step_tokens)
        rows = plan_rows(
            ready,
            budget,
            spec.min_chunk_tokens,
            exact=spec.exact,
            chunk_multiple_tokens=spec.chunk_multiple_tokens,
        )
        rows, num_rows = self.speculator.extend(rows, budget, self._step_model)
        rows = self._with_memory(rows, result)
        if not rows:
            residents.remove_finished(result)
            return True
        num_single = sum(row.num_tokens == 1 for row in rows)
        num_dummies = max(0, num_rows - len(rows))
        # a dummy in a guess's place takes as long as a decode
        num_decodes, prefill_tokens = num_single + num_dummies, sum(row.num_tokens for row in rows) - num_single
        known = self._step_model.num_samples >= _KNOWN_STEPS
        predicted_s = self._step_model.seconds(num_decodes, prefill_tokens) if known else None
        self._in_step = rows
        begun = time.perf_counter()
        try:
            staging = self._staging[self.num_steps % len(self._staging)]
            output = self._engine.forward(to_step_plan(rows, spec, self._dummy_blocks, num_rows, staging, predicted_s))
        except DeviceFault:
            raise
        except Exception as error:
            self._fail(rows, error, result)
            return True
        step_s = time.perf_counter() - begun
        late = self._count(rows, StepSample(num_decodes, prefill_tokens, step_s), num_dummies, predicted_s)
        wanted = 0
        best_ids, best_logits = output.best
        greedy = [
            token if finite else None
            for token, finite in zip(best_ids.tolist(), np.isfinite(best_logits).tolist(), strict=True)
        ]
        now_ns = time.time_ns()
        before: Sequence | None = None
        for row in rows:
            sequence = row.sequence
            if not row.counts or self._is_early(row):
                wanted += 1  # what it wrote lies beyond `past`, where the next step's tokens go
                continue
            sequence.past += row.num_tokens
            if sequence is not before:  # one that is replayed or guessed has several rows, side by side
                sequence.num_steps += 1
                if sequence.first_token_ns:
                    sequence.decode_s += step_s
                else:
                    sequence.prefill_s += step_s
                    sequence.num_chunks += 1
                if late:
                    sequence.late_steps.append((now_ns, step_s))
                before = sequence
            publish(self._pool, sequence)
            if sequence.replayed and not sequence.prefilling:
                self._replay_forks(sequence, result)
            if row.last:
                sequence.first_token_ns = sequence.first_token_ns or now_ns
                self._fork(sequence, output, wanted, result)
                if sequence.finish is FinishReason.NONE:
                    self._choose(sequence, output, wanted, greedy[wanted], result)
                wanted += 1
        self.speculator.learn(rows)
        residents.remove_finished(result)
        return True

    def _with_memory(self, rows: list[Row], result: StepResult) -> list[Row]:
        """The rows whose blocks have memory under them; a sequence that finds none fails alone, a guess is given up."""
        found: list[Row] = []
        for row in rows:
            try:
                row.sequence.table.ensure(row.past + row.num_tokens)
            except PoolExhausted as error:
                if row.guess is None:
                    self._starve(row.sequence, error, result)
            else:
                found.append(row)
        return [row for row in found if row.sequence.finish is FinishReason.NONE]

    def _starve(self, sequence: Sequence, error: PoolExhausted, result: StepResult) -> None:
        if sequence.finish is FinishReason.NONE:
            log.warning("request %s fails: %s", sequence.job.request_id, error.message)
            sequence.finish = FinishReason.FAULT
            result.deltas.append(Delta(sequence.job, sequence.index, error=error, sequence=sequence))

    def _is_overdue(self, wait: OverdueWait) -> None:
        """Kept with the step's sequences, for their spans."""
        self._overdue(wait)
        for sequence in dict.fromkeys(row.sequence for row in self._in_step):
            if len(sequence.overdue) < _MOST_OVERDUE:
                sequence.overdue.append(wait)

    def _count(self, rows: list[Row], sample: StepSample, num_dummies: int, predicted_s: float | None) -> bool:
        """Whether the step came late."""
        self._faults = 0
        self.num_steps += 1
        self.num_tokens += sum(row.num_tokens for row in rows)
        reading = StepReading(
            sample,
            len(rows),
            context_tokens=sum(row.past + row.num_tokens for row in rows),
            num_guesses=sum(row.guess is not None for row in rows),
            num_dummies=num_dummies,
            predicted_s=predicted_s,
        )
        self._stepped(reading)
        self._step_model.observe((sample,))
        self._samples.append(sample)
        return reading.late

    def _is_early(self, row: Row) -> bool:
        """What its answer may say next is not known yet: the row will be put in again, and gives the same."""
        guide = row.sequence.guide
        if guide is None or not row.last or guide.ready:
            return False
        guide.note_late()
        self.num_late_masks += 1
        return True

    def _fork(self, first: Sequence, output: StepOutput, row: int, result: StepResult) -> None:
        """The other new answers begin where the prompt ends, over its blocks."""
        if first.guide is not None and first.guide.failed:
            return  # which fails them all
        indices, first.to_fork = first.to_fork, ()
        for index in indices:
            table = self._fork_table(first, result)
            if table is None:
                return
            guide = first.guide.fork() if first.guide is not None else None
            answer = self._residents.new_sequence(first.job, index, table, first.arrival, guide)
            answer.past, answer.digests, answer.cached_tokens = first.past, list(first.digests), first.cached_tokens
            answer.accepted_ns, answer.first_token_ns = first.accepted_ns, first.first_token_ns
            self._residents.running.append(answer)
            self._choose(answer, output, row, None, result)

    def _replay_forks(self, first: Sequence, result: StepResult) -> None:
        """Answers whose KV was dropped begin again where the prompt ends, with their tokens to be replayed."""
        for answer in first.replayed:
            table = self._fork_table(first, result)
            if table is None:
                return
            answer.table = table
            answer.past = first.past
            self._residents.running.append(answer)
        first.replayed = []

    def _fork_table(self, first: Sequence, result: StepResult) -> BlockTable | None:
        """None, and the request fails, where there is no memory under a block that was promised."""
        reservation = first.for_forks.pop()
        try:
            return first.table.fork(first.past, reservation, self._engine.copy_block)
        except PoolExhausted as error:
            self._starve(first, error, result)
            return None

    def _choose(self, sequence: Sequence, output: StepOutput, row: int, greedy: int | None, result: StepResult) -> None:
        """Chooses the row's next token; `greedy` is the row's best one where that is known to be a number."""
        sampler, sampling = sequence.sampler, sequence.job.sampling
        try:
            if greedy is not None and sampler.certain(greedy):
                choice = Choice(greedy, 0.0, ())
            else:
                choice = sampler.choose(output, row)
            token_id = choice.token_id
            sampler.accept(token_id)
        except HeadraceError as error:
            sequence.finish = FinishReason.FAULT
            result.deltas.append(Delta(sequence.job, sequence.index, error=error, sequence=sequence))
            return
        sequence.append(token_id)
        count = sequence.num_answer_tokens
        stops = token_id in sampling.stop_token_ids or (token_id in self._eos_token_ids and not sampling.ignore_eos)
        if (stops and count >= sampling.min_tokens) or (sampler.guide is not None and sampler.guide.ended):
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
