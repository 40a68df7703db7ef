"""When a padded batch closes, and on which executor: pure decisions over what waits in each length bucket.

A device that idles gets what there is at once. In front of a busy one a batch grows, since nothing is gained by ending
it sooner: until it is full, a member's deadline wants it, or the device is about to idle.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.scheduler.policy.class_queue import Waiting
from headrace.scheduler.policy.commands import CloseReason
from headrace.scheduler.policy.events import Padding, Request
from headrace.scheduler.policy.flights import MOST_IN_FLIGHT, free_at, num_in_flight
from headrace.scheduler.policy.ledger import need_of
from headrace.scheduler.policy.lengths import Lengths
from headrace.scheduler.policy.limits import Limits
from headrace.scheduler.policy.ordering import Lane
from headrace.scheduler.policy.prediction import Predictor
from headrace.scheduler.policy.registry import Executor

LEAD_S = 0.005
"""So long before its device idles a batch is on its way: two messages between services."""
COMPANY = 0.5
"""Fewer arrivals than these expected before a window ends are not waited for."""
_MOST_LOOKED_AT = 64
"""Of the executors with room, so many are looked at in one turn, the least loaded first: those that idle are."""

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
    predictor: Predictor
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
        padded = self.padded_tokens(executor, model, [length])
        rows = min(self._most_rows(executor, leader.request, padded), _num_free(executor))
        if bucket.num_waiting >= rows:
            return self.now, CloseReason.FULL
        free = free_at(executor, self.now)
        overdue = free <= self.now  # it will idle any moment, nobody knows when
        until = held_since + self.limits.window_ms / 1000 if overdue else free - LEAD_S
        latest_s = self.predictor.batch_s(model, rows * padded) + LEAD_S
        wanted = min((deadline - latest_s for deadline in _deadlines(bucket)), default=until)
        if wanted < until:
            return wanted, CloseReason.DEADLINE
        if overdue and self.lengths.expected(leader.bucket, self.now, until) < COMPANY:
            return self.now, CloseReason.WINDOW
        return until, CloseReason.WINDOW

    def takes(self, executor: Executor, request: Request, lengths: Sequence[int]) -> bool:
        """Whether the batch with members of these lengths takes this one too."""
        model = request.model
        return (
            self._usable(executor, request)
            and len(lengths) < _padding(executor, model).batch_rows
            and not (lengths and self._over_budget(executor, model, [*lengths, request.prompt_tokens]))
        )

    def close_reason(
        self, closing: Closing, lengths: Sequence[int], following: Waiting | None, *, more: bool
    ) -> CloseReason:
        """Why a batch of these lengths ended. `following` is next of its bucket; `more`: others of its lane wait."""
        executor, model = closing.executor, closing.leader.request.model
        if len(lengths) >= _padding(executor, model).batch_rows:
            return CloseReason.FULL
        # nobody next: would one more like the last have gone in?
        next_length = following.request.prompt_tokens if following else lengths[-1]
        if self._over_budget(executor, model, [*lengths, next_length]):
            return CloseReason.TOKEN_BUDGET
        if following or not _num_free(executor):
            return CloseReason.CAPACITY
        return CloseReason.BUCKET if closing.reason is CloseReason.IDLE and more else closing.reason

    def padded_tokens(self, executor: Executor, model: str, lengths: Sequence[int]) -> int:
        """The length of each row: no more than the executor's context, where the last edge lies beyond."""
        return min(self.lengths.padded_length(lengths), executor.context_of(model))

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


def _num_free(executor: Executor) -> int:
    ledger = executor.ledger
    return min(ledger.shape.num_slots - ledger.num_slots, ledger.shape.num_blocks - ledger.num_blocks)


def _deadlines(bucket: Lane) -> Iterator[float]:
    return (each.since + each.request.deadline_s for each in bucket if each.request.deadline_s is not None)
