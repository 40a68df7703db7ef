"""Who goes first: REALTIME, then NORMAL and BATCH by their shares; and where every waiting request stands.

Waiting requests stand in lanes: those of one model and precision wish can only be served by the same executors, so only
the first of a lane is ever looked at. All operations are O(log n), save `lanes`, which walks lanes, never requests.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.class_queue import ClassQueue, Waiting
from headrace.scheduler.policy.commands import WaitReason
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.limits import Limits, Order
from headrace.scheduler.policy.quota import Deficit, batch_share
from headrace.scheduler.policy.registry import Pool

LaneKey = tuple[str, Precision]

OVERDUE_EVERY = 8
"""Of so many that go while an earlier class waits, one may be of another class that has waited too long."""


@dataclass(slots=True)
class Backlog:
    """How much of a class waits."""

    num_requests: int = 0
    num_tokens: int = 0


class Lane:
    """The queue of one model and precision wish. `yielding` while it leaves room to an earlier one of another lane."""

    def __init__(self, key: LaneKey, order: Order) -> None:
        self.key = key
        self.yielding = False
        self.version = 0  # counts who came and went
        self.blocked: Waiting | None = None  # the first, when it was last looked at and found no room
        self.by_bucket: dict[int, Lane] | None = None  # the same requests by length, where batches are padded
        self.grouping: object = None  # that `by_bucket` was made for
        self.held_since: float | None = None  # of a bucket, while its batch is open in front of a busy device
        self._bucket_of: Callable[[int], int] = int
        self._order = order
        qos = order is Order.QOS
        self._realtime = ClassQueue(shortest_first=qos, fair=qos)
        self._normal = ClassQueue(shortest_first=False, fair=qos)
        self._batch = ClassQueue(shortest_first=False, fair=qos)
        self._by_class = {
            QosClass.REALTIME: self._realtime,
            QosClass.NORMAL: self._normal,
            QosClass.BATCH: self._batch,
        }
        if order is Order.FCFS:
            self._by_class = dict.fromkeys(QosClass, self._normal)
        self._deficit = Deficit()
        self._realtime_in_a_row = 0

    def group(self, grouping: object, bucket_of: Callable[[int], int]) -> "dict[int, Lane]":
        """Keeps its requests by length too, in a lane a bucket, so that each bucket has the order of the whole.

        Nothing is done where this has been made for the same `grouping`.
        """
        if self.by_bucket is not None and self.grouping is grouping:
            return self.by_bucket
        self.grouping, self._bucket_of, self.by_bucket = grouping, bucket_of, {}
        for waiting in self:
            self._into_bucket(self.by_bucket, waiting)
        return self.by_bucket

    def ungroup(self) -> None:
        self.by_bucket = None

    def _into_bucket(self, by_bucket: "dict[int, Lane]", waiting: Waiting) -> None:
        waiting.bucket = self._bucket_of(waiting.request.prompt_tokens)
        bucket = by_bucket.get(waiting.bucket)
        if bucket is None:
            bucket = by_bucket[waiting.bucket] = Lane(self.key, self._order)
        bucket.push(waiting)

    @property
    def empty(self) -> bool:
        return not (self._realtime.waiting or self._normal.waiting or self._batch.waiting)

    @property
    def num_waiting(self) -> int:
        return len(self._realtime) + len(self._normal) + len(self._batch)

    def __iter__(self) -> Iterator[Waiting]:
        for queue in (self._realtime, self._normal, self._batch):
            yield from queue

    def rank(self, waiting: Waiting) -> tuple[int, int]:
        """The lower, the sooner, beside the first of other lanes."""
        return (QosClass.NORMAL if self._order is Order.FCFS else waiting.request.qos_class, waiting.number)

    def head(self, now: float, pool: Pool | None, limits: Limits) -> Waiting | None:
        """Who is next for these executors. The same again until something changes or time passes."""
        realtime, normal, batch = self._realtime, self._normal, self._batch
        if self._order is not Order.QOS:
            first = realtime if realtime.waiting else normal if normal.waiting else batch
            return first.first(now, math.inf)
        if realtime.waiting:
            if self._realtime_in_a_row >= OVERDUE_EVERY:
                for queue in (normal, batch):
                    oldest = queue.oldest
                    if oldest is not None and now - oldest.since >= limits.longest_wait_s:
                        return oldest
            return realtime.first(now, limits.realtime_wait_s)
        if not batch.waiting:
            return normal.first(now, math.inf)
        if not normal.waiting:
            return batch.first(now, math.inf)
        return self._of_two(now, pool.load if pool else 0.0, limits)

    def _of_two(self, now: float, load: float, limits: Limits) -> Waiting | None:
        """NORMAL's first or BATCH's, by their shares."""
        normal, batch, oldest = self._normal.first(now, math.inf), self._batch.first(now, math.inf), self._batch.oldest
        if normal is None or batch is None or oldest is None:
            return normal or batch
        share = batch_share(load, limits)
        if now - oldest.since >= limits.longest_wait_s:
            share = max(share, min(limits.batch_share, 1 / OVERDUE_EVERY))
        chosen = self._deficit.choose(normal.cost, batch.cost, share)
        return normal if chosen is QosClass.NORMAL else batch

    def num_ahead_of(self, qos_class: QosClass) -> int:
        """How many of its class and of those before it are there."""
        if self._order is Order.FCFS:
            return len(self._normal.waiting)
        num = len(self._realtime.waiting)
        if qos_class >= QosClass.NORMAL:
            num += len(self._normal.waiting)
        return num + len(self._batch.waiting) if qos_class is QosClass.BATCH else num

    def push(self, waiting: Waiting) -> bool:
        """Takes it in; False: it is certainly not the first."""
        self.version += 1
        if self.by_bucket is not None:
            self._into_bucket(self.by_bucket, waiting)
        return self._by_class[waiting.request.qos_class].push(waiting)

    def remove(self, waiting: Waiting, *, served: bool) -> None:
        """Takes it out; `served`: its tenant and class pay for it."""
        self.version += 1
        qos_class = waiting.request.qos_class
        if served and self._order is Order.QOS:
            if qos_class is QosClass.REALTIME:
                self._realtime_in_a_row += 1
            else:
                self._realtime_in_a_row = 0
                if self._normal.waiting and self._batch.waiting:
                    self._deficit.served(qos_class, waiting.cost)
        self._by_class[qos_class].remove(waiting, served=served)
        if not (self._normal.waiting and self._batch.waiting):
            self._deficit.clear()
        if self.by_bucket is not None:
            bucket = self.by_bucket[waiting.bucket]
            bucket.remove(waiting, served=served)
            if bucket.empty:
                del self.by_bucket[waiting.bucket]


@dataclass(slots=True)
class Queues:
    """All waiting requests: by id, by lane, by gateway, and how much of each class."""

    order: Order = Order.QOS
    by_id: dict[str, Waiting] = field(default_factory=dict)
    backlog: dict[QosClass, Backlog] = field(default_factory=lambda: {qos: Backlog() for qos in QosClass})
    _lanes: dict[str, dict[Precision, Lane]] = field(default_factory=dict)
    _by_gateway: dict[str, dict[str, Waiting]] = field(default_factory=dict)
    _last_number: int = 0

    def push(
        self,
        request: Request,
        now: float,
        *,
        cost: float,
        predicted_s: float,
        urgent_at: float | None = None,
        wish: Precision | None = None,
    ) -> tuple[Lane, Waiting, bool]:
        """Takes it into its lane, and says whether it may be the first there. The id must not be waiting.

        `wish` is what the rules choose for it; None: its own.
        """
        wish = request.precision if wish is None else wish
        lane = self._lane((request.model, wish))
        self._last_number += 1
        ahead = sum(other.num_ahead_of(request.qos_class) for other in self._lanes[request.model].values())
        if self.order is not Order.QOS:
            urgent_at = None
        waiting = Waiting(request, self._last_number, now, ahead, cost, predicted_s, urgent_at, wish=wish)
        if ahead:
            waiting.wait_reason = WaitReason.QUEUE
        may_be_first = lane.push(waiting)
        self.by_id[request.request_id] = waiting
        self._by_gateway.setdefault(request.gateway_id, {})[request.request_id] = waiting
        backlog = self.backlog[request.qos_class]
        backlog.num_requests += 1
        backlog.num_tokens += request.tokens
        return lane, waiting, may_be_first

    def remove(self, waiting: Waiting, *, served: bool) -> Lane:
        """Takes a waiting request out, from wherever in its lane it stands."""
        request = waiting.request
        lanes = self._lanes[request.model]
        lane = lanes[waiting.wish]
        lane.remove(waiting, served=served)
        if lane.empty:
            del lanes[waiting.wish]
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

    def lane(self, key: LaneKey) -> Lane | None:
        """The lane with somebody in it; None where nobody of it waits."""
        return self._lanes.get(key[0], {}).get(key[1])

    def lanes_of(self, model: str) -> list[Lane]:
        return list(self._lanes.get(model, {}).values())

    def reorder(self, order: Order, wish_of: Callable[[Request], Precision]) -> None:
        """Lines everybody up anew, by another order or with other wishes."""
        self.order = order
        self._lanes.clear()
        for waiting in self.by_id.values():
            waiting.wish = wish_of(waiting.request)
            self._lane((waiting.request.model, waiting.wish)).push(waiting)

    def _lane(self, key: LaneKey) -> Lane:
        lanes = self._lanes.setdefault(key[0], {})
        lane = lanes.get(key[1])
        if lane is None:
            lane = lanes[key[1]] = Lane(key, self.order)
        return lane
