"""One step in the making: the commands so far, and which queues and executors have changed.

Between steps no first request of a lane could be placed. So after an event only what changed is looked at again: lanes
with a new first request, against every executor; and executors with more room, for every lane they serve.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator

from headrace.core.errors import NoExecutor
from headrace.core.packing import Row
from headrace.core.prefix import PREFIX_TOKENS
from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.admission import check_servable
from headrace.scheduler.policy.class_queue import Waiting
from headrace.scheduler.policy.commands import (
    CloseReason,
    Command,
    Dispatch,
    Displacement,
    Drop,
    Member,
    Refusal,
    Refuse,
    Resume,
    WaitReason,
)
from headrace.scheduler.policy.displacement import make_room
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.flights import depart
from headrace.scheduler.policy.former import Closing, Former
from headrace.scheduler.policy.ledger import Need, Reservation, need_of
from headrace.scheduler.policy.lengths import lengths_of
from headrace.scheduler.policy.limits import Order
from headrace.scheduler.policy.ordering import Lane
from headrace.scheduler.policy.placement import Blocked, fits, place, sooner_first, time_on
from headrace.scheduler.policy.prediction import finish_s
from headrace.scheduler.policy.registry import Executor, Pool
from headrace.scheduler.policy.state import PaddedTally, State

_MOST_LOOKED_AT = 16
"""Of the executors that could make room for a REALTIME request, so many are looked at in one turn."""


class Turn:
    """Collects an event's effects, then `dispatch` gives room away in order of rank."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.commands: list[Command] = []
        self._heap: list[tuple[tuple[int, int], int, Lane, Waiting, int]] = []
        self._numbers = itertools.count()
        # dicts for their order: equal inputs, equal commands
        self._changed: dict[Lane, None] = {}
        self._to_look_at: dict[Lane, None] = {}
        self._freed: dict[str, None] = {}
        self._settled: dict[Lane, int] = {}  # at which of its versions
        self._batches: dict[str, list[Member]] = {}
        self._padded: list[tuple[Executor, list[Member], CloseReason, int, tuple[Row, ...]]] = []
        self._displaced_on: set[str] = set()

    def head_changed(self, lane: Lane) -> None:
        """The lane has a new first request; lanes that left room to the old one may have it now."""
        for other in (lane, *self.state.queues.lanes()):
            if other is lane or other.yielding:
                self._changed[other] = self._to_look_at[other] = None
                self._settled.pop(other, None)

    def pushed(self, lane: Lane, waiting: Waiting) -> None:
        """The lane has one more, who may be its first."""
        if self._head(lane) is waiting:
            self.head_changed(lane)

    def look_at(self, lane: Lane) -> None:
        """Somebody more, or time alone, may close a padded batch."""
        self._to_look_at[lane] = None
        self._settled.pop(lane, None)

    def reorder(self, order: Order) -> None:
        """Everybody lines up anew, in lanes that nothing is known of yet."""
        self.state.queues.reorder(order, self.state.wish_of)
        self._changed.clear()
        self._to_look_at.clear()

    def members_changed(self) -> None:
        """Who serves what may be new for every lane, and which precisions there are to choose from."""
        choices = self.state.registry.choices()
        if choices != self.state.choices:
            self.state.choices = choices
            self.reorder(self.state.queues.order)
        for lane in self.state.queues.lanes():
            self._changed[lane] = self._to_look_at[lane] = None

    def freed(self, executor: Executor) -> None:
        """The executor has more room, or somebody on it may be displaced who could not be before."""
        self._freed[executor.executor_id] = None

    def refuse(self, waiting: Waiting, refusal: Refusal) -> None:
        self.state.tally.refused += 1
        self._take_out(waiting)
        self.commands.append(Refuse(waiting.request, refusal))

    def drop(self, waiting: Waiting) -> None:
        self.state.tally.withdrawn += 1
        self._take_out(waiting)
        self.commands.append(Drop(waiting.request))

    def dispatch(self) -> list[Command]:
        """Places all that can be placed and ends the turn: REALTIME, then those displaced, then the others."""
        state = self.state
        freed = [state.registry.executors[each] for each in self._freed if each in state.registry.executors]
        for model in {loaded.name: None for executor in freed for loaded in executor.models}:
            self._to_look_at |= dict.fromkeys(state.queues.lanes_of(model))
        self._settle_up_to(QosClass.REALTIME)
        for executor in freed:
            # the word to go on would overtake the start that displaces: the next report will do
            if executor.ledger.paused and executor.executor_id not in self._displaced_on:
                self._resume(executor)
        self._settle_up_to(QosClass.BATCH)
        for executor_id, members in self._batches.items():
            self._close(state.registry.executors[executor_id], members)
        for executor, members, reason, padded_tokens, rows in self._padded:
            self._command(executor, members, reason, padded_tokens, rows)
        return self.commands

    def _settle_up_to(self, last: QosClass) -> None:
        while True:
            for lane in self._to_look_at:
                self._look_at(lane)
            self._to_look_at.clear()
            if not (self._heap and self._heap[0][0][0] <= last):
                return
            _, _, lane, head, version = heapq.heappop(self._heap)
            if lane.version == version != self._settled.get(lane):  # else it has been looked at again since
                self._settled[lane] = version
                self._settle(lane, head)

    def _resume(self, executor: Executor) -> None:
        """Displaced requests go on in the order of their displacement, before anybody that waits.

        The first does so in any case where nobody else holds a slot: the executor may have come back smaller.
        """
        ledger, resumed = executor.ledger, []
        for request_id, held in list(ledger.paused.items()):
            if ledger.num_slots and not ledger.can_resume(held):
                break
            ledger.resume(request_id)
            resumed.append(request_id)
        if resumed:
            self.state.registry.update(executor)
            self.commands.append(Resume(executor.executor_id, tuple(resumed)))

    def _head(self, lane: Lane) -> Waiting | None:
        found = self.state.registry.pool(*lane.key)
        return lane.head(self.state.now, found[1] if found else None, self.state.limits)

    def _look_at(self, lane: Lane) -> None:
        if head := self._head(lane):
            heapq.heappush(self._heap, (lane.rank(head), next(self._numbers), lane, head, lane.version))

    def _take_out(self, waiting: Waiting, *, served: bool = False) -> None:
        self.state.deadlines.cancel(waiting.request.request_id)
        self.head_changed(self.state.queues.remove(waiting, served=served))

    def _settle(self, lane: Lane, head: Waiting) -> None:
        """Places a lane's first request, refuses it where nobody is left to serve it, or notes what it waits for."""
        found = self.state.registry.pool(*lane.key)
        everybody = lane in self._changed
        refusal = check_servable(head.request, self.state.registry) if everybody or not found else None
        if refusal or not found:
            if self.state.grace_ends is None:
                message = refusal.message if refusal else "no executor"
                message = f"{message}: those that could have served it left"
                self.refuse(head, Refusal(NoExecutor, message, field="model"))
            return
        precision, pool = found
        if pool.padded:
            self._form(lane, head, precision, pool)
            return
        lane.ungroup()
        candidates: Iterable[Executor] = pool.open.by_load() if everybody else self._freed_of(pool)
        if head.request.prefixes and self.state.prefixes:
            candidates = self._sooner_first(head.request, pool, candidates, everybody)
        owed = self._owed(lane, head)
        outcome = place(head.request, candidates, owed, self._in_time(head))
        if not isinstance(outcome, Blocked):
            self._one_by_one(outcome[0], self._reserve(head, *outcome, precision, ()))
        elif room := self._displace(head.request, pool, owed):
            self._one_by_one(room[0], self._reserve(head, *room[:2], precision, room[2]))
        else:
            lane.blocked = head
            may_displace = head.request.qos_class is QosClass.REALTIME and owed is not _nobody
            lane.yielding = outcome.yielding or may_displace or (lane.yielding and not everybody)
            head.wait_reason = outcome.wait_reason

    def _sooner_first(
        self, request: Request, pool: Pool, candidates: Iterable[Executor], everybody: bool
    ) -> Iterator[Executor]:
        """Of those with a cache of the prompt, the candidates that will be sooner through go first."""
        output_tokens = request.n * self.state.predictor.output_tokens(request)
        cached_tokens = {
            pool.members[executor_id]: borders * PREFIX_TOKENS
            for executor_id, borders in self.state.prefixes.longest(request.prefixes).items()
            if executor_id in pool.open and (everybody or executor_id in self._freed)
        }
        return sooner_first(
            candidates,
            cached_tokens,
            lambda executor, cached: time_on(executor, request, cached, output_tokens),
        )

    def _form(self, lane: Lane, head: Waiting, precision: Precision, pool: Pool) -> None:
        """Closes one padded batch, or leaves those open that gain by waiting behind busy devices."""
        state, owed = self.state, self._owed(lane, head)
        lengths = lengths_of(state.lengths, head.request.model, precision, pool, state.limits.buckets)
        buckets = lane.group(lengths.version, lengths.bucket_of)
        former = Former(lengths, state.limits, state.now)
        others = [
            (first, bucket)
            for key, bucket in buckets.items()
            if key != head.bucket and (first := bucket.head(state.now, pool, state.limits)) is not None
        ]
        others.sort(key=lambda pair: lane.rank(pair[0]))
        outcome = former.choose([(head, buckets[head.bucket]), *others], pool.open.by_load(), owed)
        if isinstance(outcome, Closing):
            self._fill(outcome, lane, precision, pool, former)
            return
        lane.blocked, lane.yielding = head, outcome.yielding
        if outcome.until is None:
            state.windows.cancel(lane.key)
            head.wait_reason = WaitReason.QUEUE if outcome.yielding else WaitReason.SLOTS
        else:
            state.windows.set(lane.key, outcome.until)
            head.wait_reason = WaitReason.COMPANY

    def _fill(self, closing: Closing, lane: Lane, precision: Precision, pool: Pool, former: Former) -> None:
        """Takes members from the bucket, the leader first, in the bucket's order, while they fit."""
        state, executor, bucket, model = self.state, closing.executor, closing.bucket, lane.key[0]
        bucket.held_since = None
        members: list[Member] = []
        lengths: list[int] = []
        open_rows = former.open_rows(executor, closing.leader, bucket)

        def take(waiting: Waiting) -> None:
            if open_rows is not None:
                open_rows.add(len(lengths), waiting.request.prompt_tokens)
            lengths.append(waiting.request.prompt_tokens)
            need = need_of(waiting.request, executor.ledger.shape.block_tokens)
            members.append(self._reserve(waiting, executor, need, precision, ()))

        following: Waiting | None = closing.leader
        while following is not None and former.takes(executor, following.request, lengths, open_rows):
            take(following)
            following = bucket.head(state.now, pool, state.limits)
        if open_rows is not None:
            for waiting in former.gap_fillers(open_rows, bucket):
                if former.takes(executor, waiting.request, lengths, open_rows):
                    take(waiting)
        rows = former.packed(executor, model, open_rows, lengths) if open_rows is not None else ()
        padded_tokens = former.row_tokens(executor, model, lengths, rows)
        own = {member.request.request_id: executor.ledger.reservations[member.request.request_id] for member in members}
        num_rows = len(rows) or len(members)
        depart(executor, own, executor.steps.seconds(0, num_rows * padded_tokens), state.now)
        reason = former.close_reason(closing, lengths, following, more=lane.num_waiting > 0, open_rows=open_rows)
        self._padded.append((executor, members, reason, padded_tokens, rows))

    def _in_time(self, waiting: Waiting) -> Callable[[Executor], bool] | None:
        """Whether an executor will likely end the request before its deadline; None without one."""
        request, predictor = waiting.request, self.state.predictor
        if request.deadline_s is None:
            return None
        left_s = waiting.since + request.deadline_s - self.state.now
        output_tokens = predictor.output_tokens(request)
        return lambda executor: finish_s(executor.steps, request, output_tokens, executor.ledger.num_slots) <= left_s

    def _freed_of(self, pool: Pool) -> list[Executor]:
        freed = [pool.members[executor_id] for executor_id in self._freed if executor_id in pool.open]
        return sorted(freed, key=lambda executor: (executor.ledger.load, executor.number))

    def _displace(
        self, request: Request, pool: Pool, owed: Callable[[Executor], bool]
    ) -> tuple[Executor, Need, tuple[Displacement, ...]] | None:
        """Makes room for a REALTIME request where others run that may be displaced, and nobody earlier waits."""
        limits = self.state.limits
        if request.qos_class is not QosClass.REALTIME or limits.order is not Order.QOS or not limits.max_displacements:
            return None
        for executor in itertools.islice(pool.victims.values(), _MOST_LOOKED_AT):
            if request.request_id in executor.ledger.reservations or owed(executor):
                continue
            if not fits(executor.ledger.shape, executor.context_of(request.model), request):
                continue
            if displaced := make_room(request, executor.ledger):
                for each in displaced:
                    executor.ledger.pause(each.request_id, drop_kv=each.drop_kv, most=limits.max_displacements)
                self.state.tally.displaced += len(displaced)
                self._displaced_on.add(executor.executor_id)
                return executor, need_of(request, executor.ledger.shape.block_tokens), displaced
        return None

    def _owed(self, lane: Lane, head: Waiting) -> Callable[[Executor], bool]:
        """Whether an executor's room belongs to an earlier request, of another lane, that waits for it."""
        rank = lane.rank(head)
        earlier = [
            (first.request, found[1].members)
            for other in self.state.queues.lanes()
            if other is not lane
            and (first := self._head(other)) is not None
            and other.rank(first) < rank
            and (found := self.state.registry.pool(*other.key)) is not None
        ]
        if not earlier:
            return _nobody
        return lambda executor: any(
            executor.executor_id in members and fits(executor.ledger.shape, executor.context_of(request.model), request)
            for request, members in earlier
        )

    def _reserve(
        self,
        head: Waiting,
        executor: Executor,
        need: Need,
        precision: Precision,
        displaced: tuple[Displacement, ...],
    ) -> Member:
        state, request = self.state, head.request
        executor.ledger.reserve(request.request_id, Reservation(need, request, started=False))
        state.registry.update(executor)
        state.hold(request.request_id, executor.executor_id)
        state.starts.set((executor.executor_id, request.request_id), state.now + state.limits.start_timeout_s)
        state.rates[request.qos_class].left(request.tokens, state.now)
        if precision is Precision.ANY:
            precision = executor.default_precision(request.model)
        waited_s = state.now - head.since
        wait_reason = head.wait_reason if waited_s else WaitReason.NONE
        member = Member(request, precision, head.position, wait_reason, waited_s, displaced)
        self._take_out(head, served=True)
        return member

    def _one_by_one(self, executor: Executor, member: Member) -> None:
        self._batches.setdefault(executor.executor_id, []).append(member)

    def _close(self, executor: Executor, members: list[Member]) -> None:
        """One batch, or several where the token budget cuts it."""
        batch: list[Member] = []
        tokens = 0
        for member in members:
            if batch and tokens + member.request.prompt_tokens > self.state.limits.batch_tokens:
                self._command(executor, batch, CloseReason.TOKEN_BUDGET)
                batch, tokens = [], 0
            batch.append(member)
            tokens += member.request.prompt_tokens
        self._command(executor, batch, self._close_reason(executor))

    def _close_reason(self, executor: Executor) -> CloseReason:
        registry = self.state.registry
        if executor.ledger.num_slots >= executor.ledger.shape.num_slots:
            return CloseReason.FULL
        pools = (registry.pool(*lane.key) for lane in self.state.queues.lanes())
        waited_for = any(found and executor.executor_id in found[1].members for found in pools)
        return CloseReason.CAPACITY if waited_for else CloseReason.IDLE

    def _command(
        self,
        executor: Executor,
        members: list[Member],
        reason: CloseReason,
        padded_tokens: int = 0,
        rows: tuple[Row, ...] = (),
    ) -> None:
        state = self.state
        state.last_batch += 1
        batch_id = f"{state.epoch}-{state.last_batch}"
        model = members[0].request.model
        padding = executor.padding_of(model) if padded_tokens else None
        batch_rows = padding.batch_rows if padding else 0
        dispatch = Dispatch(
            batch_id, executor.executor_id, executor.address, tuple(members), reason, padded_tokens, batch_rows, rows
        )
        self.commands.append(dispatch)
        if padding:
            tally = state.padded.setdefault(model, PaddedTally())
            tally.batches += 1
            tally.rows += dispatch.num_rows
            tally.possible_rows += batch_rows
            tally.prompt_tokens += dispatch.prompt_tokens
            tally.padded_tokens += dispatch.num_rows * padded_tokens


def _nobody(executor: Executor) -> bool:
    return False
