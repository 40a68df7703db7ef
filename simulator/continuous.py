"""The step loop of an executor: continuous batching with chunked prefill, pauses and resumptions at step boundaries.

Decodes go first, then prefill chunks by class and arrival, within the step's tokens, as in the real planner. A step
costs O(prefill chunks + what changes), however many sequences decode in it: those are counted, not walked.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass

from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Displacement
from headrace.simulator.clock import Clock, Phase
from headrace.simulator.executor import Device, Reporter
from headrace.simulator.job import Job, Outcome
from headrace.simulator.telemetry import Group, Telemetry


@dataclass(slots=True, eq=False)
class _Sequence:
    """`pending` tokens are to be prefilled before its next one comes, `past` are in its KV, `computed` were so once.

    While it decodes it ends with the loop's round `last_round`.
    """

    job: Job
    number: int
    num_blocks: int
    pending: int
    past: int = 0
    computed: int = 0
    decoding: bool = False
    paused: bool = False
    dropped: bool = False
    last_round: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.job.request.qos_class, self.number

    @property
    def group(self) -> Group:
        return self.job.qos_class, self.job.request.tenant


def chunk_tokens(pending: int, budget: int, least: int) -> int:
    """The largest chunk within the budget that leaves no rest shorter than `least`; 0 if there is none."""
    if pending <= budget:
        return pending
    size = min(budget, pending - least)
    return size if size >= least else 0


class ContinuousLoop:
    """One executor's sequences, slots and blocks."""

    def __init__(self, clock: Clock, device: Device, telemetry: Telemetry, reporter: Reporter) -> None:
        self._clock = clock
        self._device = device
        self._telemetry = telemetry
        self._reporter = reporter
        self._inbox: deque[tuple[Job, tuple[Displacement, ...]] | str] = deque()
        self._sequences: dict[str, _Sequence] = {}
        self._prefilling: list[_Sequence] = []  # by key
        self._paused: dict[str, _Sequence] = {}
        self._to_resume: dict[str, None] = {}
        self._by_round: dict[int, list[_Sequence]] = {}  # whom a round ends; some have left meanwhile
        self._rejoined: dict[_Sequence, None] = {}  # they decode again, first in the step that runs
        self._by_group: dict[Group, int] = {}  # decodes
        self._num_decodes = self._context = 0
        self._round = self._taken = 0
        self._num_slots = self._num_blocks = 0
        self._chunks: list[tuple[_Sequence, int]] = []
        self._busy = self._stopped = False

    def take(self, job: Job, displaced: Many[Displacement]) -> None:
        """Joins at the next step boundary, when those displaced for it leave."""
        self._inbox.append((job, tuple(displaced)))
        self._wake()

    def resume(self, request_id: str) -> None:
        self._inbox.append(request_id)
        self._wake()

    def running_ids(self) -> tuple[str, ...]:
        return tuple(self._sequences)

    def paused_ids(self) -> tuple[str, ...]:
        return tuple(self._paused)

    def stop(self) -> list[Job]:
        self._stopped = True
        for sequence in self._sequences.values():
            if sequence.decoding:
                self._leave_decodes(sequence)
        left = [sequence.job for sequence in self._sequences.values()]
        return left + [message[0] for message in self._inbox if not isinstance(message, str)]

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            self._clock.after(0.0, self._begin, Phase.BOUNDARY)

    def _begin(self) -> None:
        if self._stopped:
            return
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, str):
                if message in self._paused:
                    self._to_resume[message] = None
            else:
                self._accept(*message)
        self._resume_all()
        self._reporter.flush()
        tokens = self._plan()
        if not (self._num_decodes or tokens):
            self._busy = False
            return
        duration_s = self._device.times.seconds(self._num_decodes, tokens, self._context)
        self._telemetry.stepped(
            self._clock.now,
            duration_s,
            self._num_slots,
            self._num_decodes + sum(size == sequence.pending for sequence, size in self._chunks),
        )
        self._reporter.sampled(StepSample(self._num_decodes, tokens, duration_s))
        self._clock.after(duration_s, lambda: self._end(duration_s))

    def _plan(self) -> int:
        """Prefill chunks of the step that begins; returns their tokens."""
        self._chunks = []
        budget = self._device.step_tokens - self._num_decodes
        least = self._device.min_chunk_tokens
        for sequence in self._prefilling:
            pending = sequence.pending
            size = chunk_tokens(pending, budget, least)
            if not size and not (self._num_decodes or self._chunks):
                size = pending if pending < 2 * least else least  # a budget below the bound must not stop the loop
            if not size:
                break
            self._chunks.append((sequence, size))
            budget -= size
        return sum(size for _, size in self._chunks)

    def _end(self, duration_s: float) -> None:
        if self._stopped:
            return
        now, telemetry = self._clock.now, self._telemetry
        self._round += 1
        self._context += self._num_decodes
        gone = dict.fromkeys(self._by_group, 0)
        for sequence in self._rejoined:
            telemetry.gaps[sequence.group].add(now - (sequence.job.last_at or 0.0))
            gone[sequence.group] += 1
        self._rejoined.clear()
        for group, num_decodes in self._by_group.items():
            if num_decodes > gone[group]:
                telemetry.gaps[group].add(duration_s, num_decodes - gone[group])
            telemetry.served(now, group[1], num_decodes)
        telemetry.useful_tokens += self._num_decodes
        telemetry.computed_tokens += self._num_decodes
        for sequence in self._by_round.pop(self._round, ()):
            if sequence.decoding and sequence.last_round == self._round:
                self._leave_decodes(sequence)
                self._finish(sequence)
        for sequence, size in self._chunks:
            self._prefilled(sequence, size)
        self._reporter.flush()
        self._clock.after(0.0, self._begin, Phase.BOUNDARY)

    def _prefilled(self, sequence: _Sequence, size: int) -> None:
        telemetry, job, now = self._telemetry, sequence.job, self._clock.now
        sequence.past += size
        sequence.pending -= size
        fresh = max(0, sequence.past - sequence.computed)
        sequence.computed += fresh
        telemetry.useful_tokens += fresh
        telemetry.computed_tokens += size
        telemetry.served(now, job.request.tenant, fresh + (not sequence.pending))
        if sequence.pending:
            return
        self._prefilling.remove(sequence)
        if job.first_at is None:
            job.first_at = now
        else:
            telemetry.gaps[sequence.group].add(now - (job.last_at or now))
        job.last_at = now
        job.generated += 1
        if job.generated == job.output_tokens:
            self._finish(sequence)
        else:
            self._join_decodes(sequence)

    def _accept(self, job: Job, displaced: tuple[Displacement, ...]) -> None:
        for each in displaced:
            self._pause(each)
        request = job.request
        num_blocks = -(-(request.prompt_tokens + request.max_output_tokens) // self._device.block_tokens)
        job.started_at = self._clock.now
        self._reporter.started(job)
        if self._num_slots >= self._device.num_slots or self._num_blocks + num_blocks > self._device.num_blocks:
            self._reporter.ended(job, Outcome.LOST, "no room on the executor")
            return
        self._taken += 1
        sequence = _Sequence(job, self._taken, num_blocks, request.prompt_tokens)
        self._sequences[request.request_id] = sequence
        self._num_slots += 1
        self._num_blocks += num_blocks
        insort(self._prefilling, sequence, key=lambda each: each.key)

    def _pause(self, displacement: Displacement) -> None:
        """A sequence gives its slot, and its blocks too where its KV is dropped. One that has ended is passed over."""
        sequence = self._sequences.get(displacement.request_id)
        if sequence is None:
            return
        if not sequence.paused:
            self._telemetry.num_displaced += 1
            sequence.job.num_displacements += 1
            if sequence.decoding:
                self._leave_decodes(sequence)
                sequence.job.last_at = self._clock.now  # it decoded in the step that has just ended
            else:
                self._prefilling.remove(sequence)
            sequence.paused = True
            self._paused[displacement.request_id] = sequence
            self._num_slots -= 1
        self._to_resume.pop(displacement.request_id, None)
        if displacement.drop_kv and not sequence.dropped:
            self._telemetry.num_dropped += 1
            sequence.dropped = True
            self._num_blocks -= sequence.num_blocks
            # the prompt and all answer tokens go in again; the last of them brings the next one
            sequence.past, sequence.pending = 0, sequence.job.request.prompt_tokens + sequence.job.generated

    def _resume_all(self) -> None:
        """Those told to go on do so, in that order, once there is room."""
        for request_id in list(self._to_resume):
            sequence = self._paused[request_id]
            blocks = sequence.num_blocks if sequence.dropped else 0
            if self._num_slots >= self._device.num_slots or self._num_blocks + blocks > self._device.num_blocks:
                return
            del self._to_resume[request_id], self._paused[request_id]
            self._telemetry.num_resumed += 1
            sequence.paused = sequence.dropped = False
            self._num_slots += 1
            self._num_blocks += blocks
            if sequence.pending:
                insort(self._prefilling, sequence, key=lambda each: each.key)
            else:
                self._join_decodes(sequence)
                self._rejoined[sequence] = None

    def _join_decodes(self, sequence: _Sequence) -> None:
        job = sequence.job
        sequence.decoding = True
        sequence.last_round = self._round + job.output_tokens - job.generated
        self._by_round.setdefault(sequence.last_round, []).append(sequence)
        self._by_group[sequence.group] = self._by_group.get(sequence.group, 0) + 1
        self._num_decodes += 1
        self._context += job.request.prompt_tokens + job.generated

    def _leave_decodes(self, sequence: _Sequence) -> None:
        job = sequence.job
        job.generated = job.output_tokens - (sequence.last_round - self._round)
        # its last token has not gone in yet
        sequence.past = sequence.computed = job.request.prompt_tokens + job.generated - 1
        sequence.decoding = False
        self._rejoined.pop(sequence, None)
        self._num_decodes -= 1
        self._context -= job.request.prompt_tokens + job.generated
        self._by_group[sequence.group] -= 1
        if not self._by_group[sequence.group]:
            del self._by_group[sequence.group]

    def _finish(self, sequence: _Sequence) -> None:
        job = sequence.job
        job.last_at = self._clock.now
        del self._sequences[job.request.request_id]
        self._num_slots -= 1
        self._num_blocks -= sequence.num_blocks
        self._reporter.ended(job, Outcome.FINISHED)
