"""The waiting requests of one class: fair between tenants in tokens, then shortest first or oldest first.

Start-time fair queueing: each tenant has a virtual time that its served tokens move on, and the tenant furthest behind
is next. Of its requests, one about to miss its deadline goes first, the earliest deadline of several; where the
shortest goes first, then the oldest if it has waited too long. Fairness stands above urgency, so that nobody gains by
setting short deadlines. All operations are O(log n); what has gone stays in the heaps until it comes up, or until half
of them is gone.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.core.request import Precision
from headrace.scheduler.policy.commands import WaitReason
from headrace.scheduler.policy.events import Request


@dataclass(slots=True, eq=False)
class Waiting:
    """A queued request: since when, how many of its model were ahead of it, what it last waited for.

    `cost` is its prompt and expected answer in tokens, `predicted_s` how long it will likely take; from `urgent_at` on
    its deadline is near.
    """

    request: Request
    number: int
    since: float
    position: int
    cost: float
    predicted_s: float
    urgent_at: float | None = None
    wait_reason: WaitReason = WaitReason.NONE
    gone: bool = False
    wish: Precision = Precision.ANY  # its own, or the rules'
    bucket: int = 0  # of its length, where its lane is grouped


_Heap = list[tuple[float, int, Waiting]]


@dataclass(slots=True, eq=False)
class _Tenant:
    heap: _Heap = field(default_factory=list)
    arrivals: deque[Waiting] = field(default_factory=deque)  # where the shortest goes first
    calm: _Heap = field(default_factory=list)  # those with deadlines, by urgent_at
    urgent: _Heap = field(default_factory=list)  # by deadline
    virtual: float = 0.0
    num_gone: int = 0

    def first(self, now: float, wait_s: float) -> Waiting | None:
        if self.calm or self.urgent:
            urgent = self._first_urgent(now)
            if urgent is not None:
                return urgent
        arrivals = self.arrivals
        while arrivals and arrivals[0].gone:
            arrivals.popleft()
        if arrivals and now - arrivals[0].since >= wait_s:
            return arrivals[0]
        return _first(self.heap)

    def _first_urgent(self, now: float) -> Waiting | None:
        while self.calm and (self.calm[0][2].gone or self.calm[0][0] <= now):
            _, number, waiting = heapq.heappop(self.calm)
            if not waiting.gone and waiting.request.deadline_s is not None:
                heapq.heappush(self.urgent, (waiting.since + waiting.request.deadline_s, number, waiting))
        return _first(self.urgent)

    def forget_gone(self) -> None:
        self.num_gone += 1
        if self.num_gone > 64 and self.num_gone * 2 > len(self.heap):
            for heap in (self.heap, self.calm, self.urgent):
                heap[:] = [entry for entry in heap if not entry[2].gone]
                heapq.heapify(heap)
            self.arrivals = deque(waiting for waiting in self.arrivals if not waiting.gone)
            self.num_gone = 0


def _first(heap: _Heap) -> Waiting | None:
    while heap:
        waiting = heap[0][2]
        if not waiting.gone:
            return waiting
        heapq.heappop(heap)
    return None


class ClassQueue:
    """`shortest_first`: by predicted time, else by arrival. `fair`: between tenants, else as if all were one's."""

    def __init__(self, *, shortest_first: bool, fair: bool) -> None:
        self._shortest_first = shortest_first
        self._fair = fair
        self.waiting: OrderedDict[int, Waiting] = OrderedDict()  # by number; to be read only
        self._tenants: dict[str, _Tenant] = {}
        self._turns: list[tuple[float, int, str]] = []  # one entry a tenant in `_tenants`; its time may lag behind
        self._virtual = 0.0

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self.waiting.values())

    @property
    def oldest(self) -> Waiting | None:
        for waiting in self.waiting.values():
            return waiting
        return None

    def push(self, waiting: Waiting) -> bool:
        """Takes it in; numbers must rise. False: others of its tenant are before it."""
        number = waiting.number
        self.waiting[number] = waiting
        name = waiting.request.tenant if self._fair else ""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(virtual=self._virtual)
            heapq.heappush(self._turns, (tenant.virtual, number, name))
        heapq.heappush(tenant.heap, (waiting.predicted_s if self._shortest_first else 0.0, number, waiting))
        if self._shortest_first:
            tenant.arrivals.append(waiting)
        if waiting.urgent_at is not None:
            heapq.heappush(tenant.calm, (waiting.urgent_at, number, waiting))
            return True
        return _first(tenant.heap) is waiting

    def remove(self, waiting: Waiting, *, served: bool) -> None:
        """Takes it out from wherever it stands; `served`: its tenant pays for it."""
        waiting.gone = True
        del self.waiting[waiting.number]
        tenant = self._tenants[waiting.request.tenant if self._fair else ""]
        tenant.forget_gone()
        if served:
            self._virtual = max(self._virtual, tenant.virtual)
            tenant.virtual += waiting.cost
        if not self.waiting:  # nobody waits, so nobody is behind
            self._tenants.clear()
            self._turns.clear()

    def first(self, now: float, wait_s: float) -> Waiting | None:
        """Who is next. `wait_s` is the bound on a tenant's oldest where the shortest goes first."""
        if not self.waiting:
            return None
        while True:
            virtual, number, name = self._turns[0]
            tenant = self._tenants[name]
            waiting = tenant.first(now, wait_s)
            if waiting is None and tenant.virtual <= self._virtual:
                heapq.heappop(self._turns)
                del self._tenants[name]
            elif virtual < tenant.virtual:
                heapq.heapreplace(self._turns, (tenant.virtual, number, name))
            elif waiting is None:
                # everybody with work is at a later time than this idle tenant: time has passed it by
                self._virtual = tenant.virtual
            else:
                return waiting
