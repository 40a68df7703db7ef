"""When a padded batch closes, and on which executor: pure decisions over what waits in each length bucket.

A device that idles gets what there is at once. In front of a busy one a batch grows, since nothing is gained by ending
it sooner: until it is full, a member's deadline wants it, or the device is about to idle.

Where the engine keeps several members of a row apart, rows are packed: there is one bucket, and the batch has the row
length that wastes least of what waits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.core.packing import FULL_WASTE, OpenRows, Row, best_fill, longest_first, rounded_up
from headrace.scheduler.policy.buckets import doubling_edges
from headrace.scheduler.policy.class_queue import Waiting
from headrace.scheduler.policy.commands import CloseReason
from headrace.scheduler.policy.events import Padding, Request
from headrace.scheduler.policy.flights import MOST_IN_FLIGHT, free_at, num_in_flight
from headrace.scheduler.policy.ledger import need_of
from headrace.scheduler.policy.lengths import Lengths
from headrace.scheduler.policy.limits import Limits
from headrace.scheduler.policy.ordering import Lane
from headrace.scheduler.policy.registry import Executor

LEAD_S = 0.005
"""So long before its device idles a batch is on its way: two messages between services."""
COMPANY = 0.5
"""Fewer arrivals than these expected before a window ends are not waited for."""
_MOST_LOOKED_AT = 64
"""Of the executors with room, so many are looked at in one turn, the least loaded first: those that idle are."""
_MOST_PACKED = 512
"""Of those that wait so many are looked at for a packed batch."""

First = tuple[Waiting, Lane]
"""A bucket and who is next of it."""


@dataclass(frozen=True, slots=True)
class Closing:
    """This bucket's batch goes to this executor; `reason` counts where nothing else has ended it."""

    executor: Executor
    leader: Waiting
    bucket: Lane
    reason: CloseReason


@dataclass(frozen=True, slots=True)
class Open:
    """No batch closes before `until`; None: no device has room. `yielding`: room is owed to an earlier request."""

    until: float | None
    yielding: bool


@dataclass(frozen=True, slots=True)
class Former:
    """The decisions of one turn for one model."""

    lengths: Lengths
    limits: Limits
    now: float

    def choose(
        self, firsts: Sequence[First], candidates: Iterable[Executor], owed: Callable[[Executor], bool]
    ) -> Closing | Open:
        """`firsts` come in their order, the leader of all first; `candidates` have a free slot, least loaded first."""
        idle: list[Executor] = []
        busy: list[Executor] = []
        yielding = False
        for executor in islice(candidates, _MOST_LOOKED_AT):
            in_flight = num_in_flight(executor)
            if in_flight >= MOST_IN_FLIGHT:
                continue
            if owed(executor):
                yielding = True
            else:
                (busy if in_flight else idle).append(executor)
        for leader, bucket in firsts:
            for executor in idle:
                if self._usable(executor, leader.request):
                    return Closing(executor, leader, bucket, CloseReason.IDLE)
        busy.sort(key=lambda each: (free_at(each, self.now), each.number))
        untils = []
        for leader, bucket in firsts:
            executor_ = next((each for each in busy if self._usable(each, leader.request)), None)
            if executor_ is None:
                bucket.held_since = None
                continue
            busy.remove(executor_)  # one open batch a device
            if bucket.held_since is None:
                bucket.held_since = self.now
            until, reason = self._open_until(executor_, leader, bucket, bucket.held_since)
            if until <= self.now:
                return Closing(executor_, leader, bucket, reason)
            untils.append(until)
        return Open(min(untils, default=None), yielding)

    def _open_until(
        self, executor: Executor, leader: Waiting, bucket: Lane, held_since: float
    ) -> tuple[float, CloseReason]:
        """When the bucket's batch closes in front of this device if nobody comes, and why."""
        model, length = leader.request.model, leader.request.prompt_tokens
        if self._packs(executor, model):
            packing = self._packed_full(executor, leader, bucket)
            if packing is None or bucket.num_waiting >= _num_free(executor):
                return self.now, CloseReason.FULL
            rows, padded = packing
        else:
            padded = self.padded_tokens(executor, model, [length])
            rows = min(self._most_rows(executor, leader.request, padded), _num_free(executor))
            if bucket.num_waiting >= rows:
                return self.now, CloseReason.FULL
        free = free_at(executor, self.now)
        overdue = free <= self.now  # it will idle any moment, nobody knows when
        until = held_since + self.limits.window_ms / 1000 if overdue else free - LEAD_S
        latest_s = executor.steps.seconds(0, rows * padded) + LEAD_S
        wanted = min((deadline - latest_s for deadline in _deadlines(bucket)), default=until)
        if wanted < until:
            return wanted, CloseReason.DEADLINE
        if overdue and self.lengths.expected(leader.bucket, self.now, until) < COMPANY:
            return self.now, CloseReason.WINDOW
        return until, CloseReason.WINDOW

    def open_rows(self, executor: Executor, leader: Waiting, bucket: Lane) -> OpenRows | None:
        """Empty rows for the batch that this one leads; None where each member has a row of its own."""
        if not self._packs(executor, leader.request.model):
            return None
        options, num_rows = self._row_options(executor, leader.request)
        align = _padding(executor, leader.request.model).align_tokens
        filled, _ = best_fill(_lengths(leader, bucket), options, num_rows, align)
        return OpenRows(filled.row_tokens, num_rows)

    def gap_fillers(self, open_rows: OpenRows, bucket: Lane) -> list[Waiting]:
        """Of those that are not next, who would fit into what is left of the rows, the longest first."""
        others = [each for each in islice(bucket, _MOST_PACKED) if open_rows.fits(each.request.prompt_tokens)]
        return [others[i] for i in longest_first([each.request.prompt_tokens for each in others], range(len(others)))]

    def packed(self, executor: Executor, model: str, open_rows: OpenRows, lengths: Sequence[int]) -> tuple[Row, ...]:
        """The rows of the members; one each, where that computes no more."""
        together = len(open_rows.rows) * self._aligned(executor, model, open_rows.longest_tokens)
        alone = len(lengths) * self._aligned(executor, model, max(lengths))
        if len(lengths) <= open_rows.num_rows and alone <= together:
            return tuple((place,) for place in range(len(lengths)))
        return tuple(map(tuple, open_rows.rows))

    def takes(
        self, executor: Executor, request: Request, lengths: Sequence[int], open_rows: OpenRows | None = None
    ) -> bool:
        """Whether the batch with members of these lengths, packed in these rows, takes this one too."""
        model = request.model
        if open_rows is not None:
            return self._usable(executor, request) and open_rows.fits(request.prompt_tokens)
        return (
            self._usable(executor, request)
            and len(lengths) < _padding(executor, model).batch_rows
            and not (lengths and self._over_budget(executor, model, [*lengths, request.prompt_tokens]))
        )

    def close_reason(
        self,
        closing: Closing,
        lengths: Sequence[int],
        following: Waiting | None,
        *,
        more: bool,
        open_rows: OpenRows | None = None,
    ) -> CloseReason:
        """Why a batch of these lengths ended. `following` is next of its bucket; `more`: others of its lane wait."""
        executor, model = closing.executor, closing.leader.request.model
        if open_rows is not None:
            return self._packed_reason(closing, open_rows, following)
        if len(lengths) >= _padding(executor, model).batch_rows:
            return CloseReason.FULL
        # nobody next: would one more like the last have gone in?
        next_length = following.request.prompt_tokens if following else lengths[-1]
        if self._over_budget(executor, model, [*lengths, next_length]):
            return CloseReason.TOKEN_BUDGET
        if following or not _num_free(executor):
            return CloseReason.CAPACITY
        return CloseReason.BUCKET if closing.reason is CloseReason.IDLE and more else closing.reason

    def _packed_reason(self, closing: Closing, open_rows: OpenRows, following: Waiting | None) -> CloseReason:
        executor, model = closing.executor, closing.leader.request.model
        batch_rows = _padding(executor, model).batch_rows
        computed = batch_rows * self._aligned(executor, model, open_rows.longest_tokens)
        if open_rows.real_tokens >= computed * (1 - FULL_WASTE):
            return CloseReason.FULL
        if following is None:
            return closing.reason
        if open_rows.fits(following.request.prompt_tokens):
            return CloseReason.CAPACITY
        return CloseReason.FULL if open_rows.num_rows == batch_rows else CloseReason.TOKEN_BUDGET

    def row_tokens(self, executor: Executor, model: str, lengths: Sequence[int], rows: Sequence[Row] = ()) -> int:
        """The length of each row of the batch: of the longest packed row, or of the bucket."""
        if rows:
            return self._aligned(executor, model, max(sum(lengths[place] for place in row) for row in rows))
        return self.padded_tokens(executor, model, lengths)

    def padded_tokens(self, executor: Executor, model: str, lengths: Sequence[int]) -> int:
        """The length of each row: no more than the executor's context, where the last edge lies beyond."""
        return min(self.lengths.padded_length(lengths), executor.context_of(model))

    def _packs(self, executor: Executor, model: str) -> bool:
        return self.lengths.grid.packs and _padding(executor, model).packs

    def _aligned(self, executor: Executor, model: str, tokens: int) -> int:
        return min(rounded_up(max(tokens, 1), _padding(executor, model).align_tokens), executor.context_of(model))

    def _row_options(self, executor: Executor, leader: Request) -> tuple[list[int], int]:
        """Row lengths with which all rows are within the token budget; if none, the leader's own, and fewer rows."""
        padding, context = _padding(executor, leader.model), executor.context_of(leader.model)
        edges = [min(edge, context) for edge in doubling_edges(padding.align_tokens, context)]
        most = self.limits.batch_tokens // padding.batch_rows
        if options := [edge for edge in edges if leader.prompt_tokens <= edge <= most]:
            return options, padding.batch_rows
        own = self._aligned(executor, leader.model, leader.prompt_tokens)
        return [own], max(1, min(padding.batch_rows, self.limits.batch_tokens // own))

    def _packed_full(self, executor: Executor, leader: Waiting, bucket: Lane) -> tuple[int, int] | None:
        """None: the batch is full. Else the rows and their length that it would have with all that waits."""
        options, num_rows = self._row_options(executor, leader.request)
        lengths = _lengths(leader, bucket)
        tokens = sum(lengths)
        if tokens >= num_rows * options[0] * (1 - FULL_WASTE):
            align = _padding(executor, leader.request.model).align_tokens
            _, waste = best_fill(lengths, options, num_rows, align)
            if waste <= FULL_WASTE or tokens >= 2 * num_rows * options[-1]:  # with twice as many, it gets no better
                return None
        return num_rows, options[-1]

    def _over_budget(self, executor: Executor, model: str, lengths: Sequence[int]) -> bool:
        return len(lengths) * self.padded_tokens(executor, model, lengths) > self.limits.batch_tokens

    def _most_rows(self, executor: Executor, request: Request, padded: int) -> int:
        return min(_padding(executor, request.model).batch_rows, max(1, self.limits.batch_tokens // max(1, padded)))

    def _usable(self, executor: Executor, request: Request) -> bool:
        """Room, context, and no earlier life of the request there."""
        ledger = executor.ledger
        need = need_of(request, ledger.shape.block_tokens)
        return (
            ledger.has_slots(need)
            and ledger.has_blocks(need)
            and request.prompt_tokens + request.max_output_tokens <= executor.context_of(request.model)
            and request.request_id not in ledger.reservations
        )


def _padding(executor: Executor, model: str) -> Padding:
    return executor.padding_of(model) or Padding(1, 1)


def _lengths(leader: Waiting, bucket: Lane) -> list[int]:
    """Of those that wait in the bucket, the leader's first."""
    others = (each for each in islice(bucket, _MOST_PACKED) if each is not leader)
    return [max(1, each.request.prompt_tokens) for each in (leader, *others)]


def _num_free(executor: Executor) -> int:
    ledger = executor.ledger
    return min(ledger.shape.num_slots - ledger.num_slots, ledger.shape.num_blocks - ledger.num_blocks)


def _deadlines(bucket: Lane) -> Iterator[float]:
    return (each.since + each.request.deadline_s for each in bucket if each.request.deadline_s is not None)
