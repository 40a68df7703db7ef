"""Who is on the executor: the running sequences, those displaced, and the slots and blocks that they hold.

A displaced (paused) request holds no slot and takes part in no step. It keeps its blocks, or loses them and has its
known tokens computed again when it goes on: the prompt in chunks, its answer's tokens as rows of one token, which is
what makes them bit for bit what they were.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from headrace.core.errors import DeadlineMissed, InvalidRequest, PoolExhausted, Unsupported
from headrace.core.request import FinishReason, QosClass
from headrace.executor.engines.protocol import EngineSpec
from headrace.executor.guide import Guide, Guides
from headrace.executor.job_check import check
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import BlockPool, Reservation
from headrace.executor.prefixes import cached_blocks, prompt_digests
from headrace.executor.sampler import SequenceSampler
from headrace.executor.sequence import Job, Sequence
from headrace.executor.step_result import Delta, StepResult

_Key = tuple[int, str]
_BROKEN = (FinishReason.FAULT, FinishReason.CANCELLED, FinishReason.DEADLINE)


class Residents:
    """`running` hold slots; `paused` were displaced. The step loop's thread owns them."""

    def __init__(
        self,
        spec: EngineSpec,
        pool: BlockPool,
        num_slots: int,
        eos_token_ids: tuple[int, ...],
        guides: Guides | None = None,
    ) -> None:
        self.running: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.paused_ids: tuple[str, ...] = ()  # replaced, never changed: other threads read it
        self.num_requests = 0
        self._spec = spec
        self._pool = pool
        self._num_slots = num_slots
        self._eos_token_ids = eos_token_ids
        self._guides = guides
        self._open_answers: dict[_Key, int] = {}
        self._output_tokens: dict[_Key, int] = {}
        self._to_resume: dict[str, None] = {}
        self._arrivals = itertools.count(1)

    def accept(self, job: Job) -> None:
        """Lets a request in, after those that make room for it have been paused. Raises InvalidRequest or
        Unsupported, having paused nobody, or PoolExhausted."""
        if (job.session, job.request_id) in self._open_answers:
            raise InvalidRequest(f"request {job.request_id} is running already", field="request_id", limit="unique")
        check(job, self._spec)
        if job.sampling.constraint and self._guides is None:
            raise Unsupported("this executor keeps no constraints on answers", field=job.sampling.constraint.field)
        for request_id, drop_kv in job.displaced:
            self.pause(request_id, drop_kv=drop_kv)
        num_answers = len(job.open_answers)
        self._want_slots(num_answers)
        digests = prompt_digests(self._pool, job)
        table, for_forks = self._open_table(job, digests, num_answers)
        key = job.session, job.request_id
        self._open_answers[key], self._output_tokens[key] = num_answers, 0
        self.num_requests = len(self._open_answers)
        sequence = self._first_of(job, table, next(self._arrivals))
        sequence.digests, sequence.for_forks = digests, for_forks
        sequence.past = sequence.cached_tokens = table.capacity_tokens
        if self._pool.cache:
            self._pool.cache.counts.prompt_tokens += len(job.prompt_ids)
            self._pool.cache.counts.cached_tokens += sequence.cached_tokens
        self.running.append(sequence)

    def new_sequence(
        self, job: Job, index: int, table: BlockTable, arrival: int, guide: Guide | None = None
    ) -> Sequence:
        """With the answer's tokens so far, if there are any: its sampler goes on where it was. A constrained one takes
        the `guide`, or has one made."""
        known = job.known(index)
        token_ids = np.zeros(len(job.prompt_ids) + job.sampling.max_tokens, np.int64)
        num_tokens = len(job.prompt_ids) + len(known)
        token_ids[:num_tokens] = np.concatenate([job.prompt_ids, known])
        if guide is None and job.sampling.constraint and self._guides:
            guide = self._guides.open(job.sampling.constraint, known.tolist())
        sampler = SequenceSampler(
            job.sampling, index, job.prompt_ids, self._eos_token_ids, self._spec.vocab_size, guide
        )
        sampler.resume(known)
        return Sequence(job, index, arrival, table, sampler, token_ids, num_tokens)

    def _first_of(self, job: Job, table: BlockTable, arrival: int) -> Sequence:
        """The answer that computes the prompt, over whose blocks the others begin. One without a token leads where
        there is one: what follows the prompt is chosen from the prompt's own last row."""
        new = [index for index in job.open_answers if not len(job.known(index))]
        begun = [index for index in job.open_answers if len(job.known(index))]
        index = (new or begun).pop(0)
        first = self.new_sequence(job, index, table, arrival)
        first.to_fork = tuple(new)
        first.replayed = [
            self.new_sequence(job, index, BlockTable(self._pool, self._pool.reserve(0)), arrival) for index in begun
        ]
        return first

    def pause(self, request_id: str, *, drop_kv: bool) -> None:
        """Displaces a request with all its answers; of a displaced one only the KV may go. Unknown ones are ignored."""
        moving = [sequence for sequence in self.running if sequence.job.request_id == request_id]
        if moving:
            self.running = [sequence for sequence in self.running if sequence.job.request_id != request_id]
            self.paused += moving
            for sequence in moving:
                sequence.pause()
            self._to_resume.pop(request_id, None)
            self._note_paused()
        if drop_kv:
            for sequence in self.paused:
                if sequence.job.request_id == request_id:
                    sequence.release()
                    sequence.past = 0
                    sequence.dropped = True

    def resume(self, request_id: str) -> None:
        """A displaced request goes on as soon as its slots and blocks are there. Unknown ones are ignored."""
        if request_id in self.paused_ids:
            self._to_resume[request_id] = None

    def take_up(self, *, everybody: bool) -> None:
        """Lets those go on for whom there is room now: of the resumed ones or, where nobody can resume them, of
        everybody, in the order in which they were displaced."""
        request_ids = self.paused_ids if everybody else tuple(self._to_resume)
        if everybody:
            self._to_resume.clear()  # who finds no room now waits for whoever may say so next
        for request_id in request_ids:
            sequences = [sequence for sequence in self.paused if sequence.job.request_id == request_id]
            sequences.sort(key=lambda sequence: sequence.job.session)  # each gateway has its own of that name
            try:
                for _, answers in itertools.groupby(sequences, lambda sequence: sequence.job.session):
                    self._take_up(list(answers))
            except PoolExhausted:
                continue
        self._note_paused()

    def paused_deadlines(self) -> list[float]:
        """Of the displaced, in monotonic seconds."""
        return [sequence.job.deadline for sequence in self.paused if sequence.job.deadline is not None]

    def miss_deadlines(self, now: float, result: StepResult) -> None:
        """Ends those whose deadline, in monotonic seconds, has passed."""
        late = False
        for sequence in self.everybody():
            deadline = sequence.job.deadline
            if deadline is not None and now >= deadline:
                sequence.finish = FinishReason.DEADLINE
                late = True
        if late:
            self.remove_finished(result)

    def cancel(self, session: int, request_id: str | None, result: StepResult) -> None:
        """Ends a session's request, or all of them."""
        for sequence in self.everybody():
            if sequence.job.session == session and request_id in (None, sequence.job.request_id):
                sequence.finish = FinishReason.CANCELLED
        self.remove_finished(result)

    def demote(self, session: int, request_id: str) -> None:
        """All answers of a session's request go on at batch priority."""
        for sequence in self.everybody():
            if sequence.job.session == session and sequence.job.request_id == request_id:
                sequence.job = replace(sequence.job, priority=QosClass.BATCH)

    def remove_finished(self, result: StepResult) -> None:
        """Frees what the ended sequences held; a request has left when its last answer has."""
        if all(sequence.finish is FinishReason.NONE for sequence in self.everybody()):
            return
        broken = {_key(sequence) for sequence in self.everybody() if sequence.finish in _BROKEN}
        for sequence in self.everybody():  # before anybody leaves, since a broken request leaves with its first answer
            if sequence.finish is not FinishReason.NONE or _key(sequence) in broken:
                made = sequence.num_answer_tokens + sum(each.num_answer_tokens for each in sequence.replayed)
                self._output_tokens[_key(sequence)] += made
        self.running = [sequence for sequence in self.running if self._stays(sequence, broken, result)]
        if self.paused:
            self.paused = [sequence for sequence in self.paused if self._stays(sequence, broken, result)]
            self._note_paused()
        self.num_requests = len(self._open_answers)

    def release(self) -> None:
        """Gives everything back."""
        for sequence in self.everybody():
            sequence.release()
        self.running, self.paused = [], []
        self._open_answers.clear()
        self._output_tokens.clear()
        self._note_paused()
        self.num_requests = 0

    def everybody(self) -> Iterator[Sequence]:
        """The running, then the displaced."""
        return itertools.chain(self.running, self.paused)

    def _note_paused(self) -> None:
        if self.paused or self.paused_ids:
            self.paused_ids = tuple(dict.fromkeys(sequence.job.request_id for sequence in self.paused))
            for request_id in self._to_resume.keys() - set(self.paused_ids):
                del self._to_resume[request_id]

    def _take_up(self, answers: list[Sequence]) -> None:
        """Raises PoolExhausted, having changed nothing, where slots or blocks are missing."""
        first, *others = answers
        to_come = first.forks_to_come
        self._want_slots(len(answers) + to_come)
        if first.dropped:
            first.table, first.for_forks = self._open_table(first.job, first.digests, len(answers) + to_come)
            first.past = first.table.capacity_tokens
            for sequence in answers:
                sequence.dropped = False
            first.replayed += others  # they begin again where the prompt ends, over its blocks
            others = []
        self.paused = [sequence for sequence in self.paused if sequence not in answers]
        self.running += [first, *others]
        for sequence in answers:
            sequence.resume()

    def _stays(self, sequence: Sequence, broken: set[_Key], result: StepResult) -> bool:
        key = _key(sequence)
        if sequence.finish is FinishReason.NONE and key not in broken:
            return True
        sequence.release()
        if key in broken:
            if self._open_answers.pop(key, 0):
                result.leave(sequence.job.request_id, self._output_tokens.pop(key))
                if sequence.finish is FinishReason.DEADLINE:
                    error = DeadlineMissed("the deadline passed while generating")
                    result.deltas.append(Delta(sequence.job, sequence.index, error=error, sequence=sequence))
                elif sequence.finish is FinishReason.CANCELLED:
                    result.deltas.append(Delta(sequence.job, sequence.index, finish=sequence.finish, sequence=sequence))
            return False
        self._open_answers[key] -= 1
        if not self._open_answers[key]:
            del self._open_answers[key]
            result.leave(sequence.job.request_id, self._output_tokens.pop(key))
        return False

    def _want_slots(self, num_slots: int) -> None:
        taken = len(self.running) + sum(sequence.forks_to_come for sequence in self.running)
        if taken + num_slots > self._num_slots:
            raise PoolExhausted(
                f"{num_slots} slots are wanted, {self._num_slots - taken} of {self._num_slots} are free"
            )

    def _needs(self, job: Job) -> tuple[int, int]:
        """Blocks of the first answer to its last token, and of each further one beside those that it shares."""
        block_tokens = self._spec.block_tokens
        blocks = -(-(len(job.prompt_ids) + job.sampling.max_tokens) // block_tokens)
        return blocks, blocks - len(job.prompt_ids) // block_tokens

    def _open_table(self, job: Job, digests: list[bytes], num_answers: int) -> tuple[BlockTable, list[Reservation]]:
        """A table that begins with what the cache has of the prompt, and what the further answers will take: all or
        nothing. Raises PoolExhausted."""
        blocks, own_blocks = self._needs(job)
        cached = cached_blocks(self._pool, self._spec, job, digests)
        shared = len(cached) - self._pool.held_by_nobody(cached)
        with ExitStack() as refused:
            reservation = refused.enter_context(self._pool.reserve(blocks - shared))
            for_forks = [refused.enter_context(self._pool.reserve(own_blocks)) for _ in range(1, num_answers)]
            refused.pop_all()
        table = BlockTable(self._pool, reservation)
        table.adopt(cached)
        return table, for_forks


def _key(sequence: Sequence) -> _Key:
    return sequence.job.session, sequence.job.request_id
