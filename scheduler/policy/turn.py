"""One step in the making: the commands so far, and which queues and executors have changed.

Between steps no first request of a lane could be placed. So after an event only what changed is looked at again: lanes
with a new first request, against every executor; and executors with more room, for every lane they serve.
"""

import heapq
import itertools
from collections.abc import Callable

from headrace.core.errors import NoExecutor
from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.admission import check_servable
from headrace.scheduler.policy.commands import CloseReason, Command, Dispatch, Drop, Member, Refusal, Refuse, WaitReason
from headrace.scheduler.policy.ledger import Need, Reservation
from headrace.scheduler.policy.ordering import Lane, Waiting
from headrace.scheduler.policy.placement import Blocked, fits, place
from headrace.scheduler.policy.registry import Executor
from headrace.scheduler.policy.state import State


class Turn:
    """Collects an event's effects, then `dispatch` gives room away in order of rank."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.commands: list[Command] = []
        self._heap: list[tuple[tuple[QosClass, int], int, Lane]] = []
        self._numbers = itertools.count()
        self._changed: set[Lane] = set()
        self._freed: dict[str, None] = {}  # a dict for its order: equal inputs, equal commands
        self._batches: dict[str, list[Member]] = {}

    def head_changed(self, lane: Lane) -> None:
        """The lane has a new first request; lanes that left room to the old one may have it now."""
        for other in (lane, *self.state.queues.lanes()):
            if other is lane or other.yielding:
                self._changed.add(other)
                self._look_at(other)

    def members_changed(self) -> None:
        """Who serves what may be new for every lane."""
        for lane in self.state.queues.lanes():
            self._changed.add(lane)
            self._look_at(lane)

    def freed(self, executor: Executor) -> None:
        """The executor may have more room."""
        self.state.registry.update(executor)
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
        """Places all that can be placed and ends the turn."""
        state = self.state
        for executor_id in self._freed:
            if executor := state.registry.executors.get(executor_id):
                for loaded in executor.models:
                    for lane in state.queues.lanes_of(loaded.name):
                        self._look_at(lane)
        while self._heap:
            rank, _, lane = heapq.heappop(self._heap)
            head = lane.head
            if head is not None and head.rank == rank:  # else it has been settled since
                self._settle(lane, head)
        for executor_id, members in self._batches.items():
            self._close(state.registry.executors[executor_id], members)
        return self.commands

    def _look_at(self, lane: Lane) -> None:
        if head := lane.head:
            heapq.heappush(self._heap, (head.rank, next(self._numbers), lane))

    def _take_out(self, waiting: Waiting) -> None:
        self.state.deadlines.cancel(waiting.request.request_id)
        lane = self.state.queues.remove(waiting)
        head = lane.head
        if head is None or head.rank > waiting.rank:
            self.head_changed(lane)

    def _settle(self, lane: Lane, head: Waiting) -> None:
        """Places a lane's first request, refuses it where nobody is left to serve it, or notes what it waits for."""
        found = self.state.registry.pool(*lane.key)
        refusal = check_servable(head.request, self.state.registry)
        if refusal or not found:
            message = refusal.message if refusal else "no executor"
            self.refuse(head, Refusal(NoExecutor, f"{message}: those that could have served it left", field="model"))
            return
        precision, pool = found
        everybody = lane in self._changed
        candidates = pool.open.values() if everybody else [pool.open[i] for i in self._freed if i in pool.open]
        outcome = place(head.request, candidates, self._owed(lane, head))
        if isinstance(outcome, Blocked):
            lane.yielding = outcome.yielding or (lane.yielding and not everybody)
            head.wait_reason = outcome.wait_reason
        else:
            self._reserve(head, *outcome, precision)

    def _owed(self, lane: Lane, head: Waiting) -> Callable[[Executor], bool]:
        """Whether an executor's room belongs to an earlier request, of another lane, that waits for it."""
        registry = self.state.registry
        earlier = [
            (first.request, found[1].members)
            for other in self.state.queues.lanes()
            if other is not lane
            and (first := other.head) is not None
            and first.rank < head.rank
            and (found := registry.pool(*other.key)) is not None
        ]
        return lambda executor: any(
            executor.executor_id in members and fits(executor.ledger.shape, executor.context_of(request.model), request)
            for request, members in earlier
        )

    def _reserve(self, head: Waiting, executor: Executor, need: Need, precision: Precision) -> None:
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
        member = Member(request, precision, head.position, wait_reason, waited_s)
        self._batches.setdefault(executor.executor_id, []).append(member)
        self._take_out(head)

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

    def _command(self, executor: Executor, members: list[Member], reason: CloseReason) -> None:
        self.state.last_batch += 1
        batch_id = f"{self.state.epoch}-{self.state.last_batch}"
        self.commands.append(Dispatch(batch_id, executor.executor_id, executor.address, tuple(members), reason))
