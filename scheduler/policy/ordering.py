"""Who goes first: classes in strict order, first come first served inside a class.

Waiting requests stand in lanes: those of one model and precision wish can only be served by the same executors, so only
the first of a lane is ever looked at. All operations are O(1), save `lanes`, which walks lanes, never requests.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.commands import WaitReason
from headrace.scheduler.policy.events import Request

LaneKey = tuple[str, Precision]


@dataclass(slots=True, eq=False)
class Waiting:
    """A queued request: since when, how many of its model were ahead of it, what it last waited for."""

    request: Request
    number: int
    since: float
    position: int
    wait_reason: WaitReason = WaitReason.NONE

    @property
    def rank(self) -> tuple[QosClass, int]:
        """The lower, the sooner, over all lanes."""
        return self.request.qos_class, self.number


@dataclass(slots=True)
class Backlog:
    """How much of a class waits."""

    num_requests: int = 0
    num_tokens: int = 0


class Lane:
    """The queue of one model and precision wish. `yielding` while it leaves room to an earlier one of another lane."""

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        self.yielding = False
        self._by_class: dict[QosClass, OrderedDict[int, Waiting]] = {qos: OrderedDict() for qos in QosClass}

    def __len__(self) -> int:
        return sum(map(len, self._by_class.values()))

    def __iter__(self) -> Iterator[Waiting]:
        for queue in self._by_class.values():
            yield from queue.values()

    @property
    def head(self) -> Waiting | None:
        for queue in self._by_class.values():
            if queue:
                return next(iter(queue.values()))
        return None

    def num_ahead_of(self, qos_class: QosClass) -> int:
        """How many a newcomer of this class stands behind."""
        return sum(len(queue) for qos, queue in self._by_class.items() if qos <= qos_class)

    def push(self, waiting: Waiting) -> None:
        self._by_class[waiting.request.qos_class][waiting.number] = waiting

    def remove(self, waiting: Waiting) -> None:
        del self._by_class[waiting.request.qos_class][waiting.number]


@dataclass(slots=True)
class Queues:
    """All waiting requests: by id, by lane, by gateway, and how much of each class."""

    by_id: dict[str, Waiting] = field(default_factory=dict)
    backlog: dict[QosClass, Backlog] = field(default_factory=lambda: {qos: Backlog() for qos in QosClass})
    _lanes: dict[str, dict[Precision, Lane]] = field(default_factory=dict)
    _by_gateway: dict[str, dict[str, Waiting]] = field(default_factory=dict)
    _last_number: int = 0

    def push(self, request: Request, now: float) -> Lane:
        """Appends to its lane. The id must not be waiting."""
        lanes = self._lanes.setdefault(request.model, {})
        lane = lanes.setdefault(request.precision, Lane((request.model, request.precision)))
        self._last_number += 1
        ahead = sum(other.num_ahead_of(request.qos_class) for other in lanes.values())
        waiting = Waiting(request, self._last_number, now, ahead)
        if ahead:
            waiting.wait_reason = WaitReason.QUEUE
        lane.push(waiting)
        self.by_id[request.request_id] = waiting
        self._by_gateway.setdefault(request.gateway_id, {})[request.request_id] = waiting
        backlog = self.backlog[request.qos_class]
        backlog.num_requests += 1
        backlog.num_tokens += request.tokens
        return lane

    def remove(self, waiting: Waiting) -> Lane:
        """Takes a waiting request out, from wherever in its lane it stands."""
        request = waiting.request
        lanes = self._lanes[request.model]
        lane = lanes[request.precision]
        lane.remove(waiting)
        if lane.head is None:
            del lanes[request.precision]
        if not lanes:
            del self._lanes[request.model]
        del self.by_id[request.request_id]
        of_gateway = self._by_gateway[request.gateway_id]
        del of_gateway[request.request_id]
        if not of_gateway:
            del self._by_gateway[request.gateway_id]
        backlog = self.backlog[request.qos_class]
        backlog.num_requests -= 1
        backlog.num_tokens -= request.tokens
        return lane

    def of_gateway(self, gateway_id: str) -> list[Waiting]:
        return list(self._by_gateway.get(gateway_id, {}).values())

    def lanes(self) -> Iterator[Lane]:
        """Every lane with somebody in it."""
        for lanes in self._lanes.values():
            yield from lanes.values()

    def lanes_of(self, model: str) -> list[Lane]:
        return list(self._lanes.get(model, {}).values())
