"""The queue of one class: whose turn it is among tenants, and which of a tenant's requests goes."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.request import QosClass
from headrace.scheduler.policy.class_queue import ClassQueue, Waiting
from headrace.scheduler.policy.events import Request

NEVER = float("inf")


class Line:
    """A class queue and the numbers that pushing needs."""

    def __init__(self, *, shortest_first: bool = True, fair: bool = True) -> None:
        self.queue = ClassQueue(shortest_first=shortest_first, fair=fair)
        self.numbers = count(1)

    def push(
        self,
        name: str,
        tokens: float = 10,
        *,
        tenant: str = "",
        since: float = 0.0,
        deadline_s: float | None = None,
        urgent_at: float | None = None,
    ) -> Waiting:
        number = next(self.numbers)
        request = Request(number, name, "g", "m", 1, 1, QosClass.REALTIME, tenant, deadline_s=deadline_s)
        waiting = Waiting(request, number, since, 0, cost=tokens, predicted_s=tokens, urgent_at=urgent_at)
        self.queue.push(waiting)
        return waiting

    def serve(self, now: float = 0.0, wait_s: float = NEVER) -> Waiting:
        first = self.queue.first(now, wait_s)
        assert first is not None
        assert self.queue.first(now, wait_s) is first, "asking changes nothing"
        self.queue.remove(first, served=True)
        return first

    def names(self, now: float = 0.0, wait_s: float = NEVER) -> list[str]:
        return [self.serve(now, wait_s).request.request_id for _ in range(len(self.queue))]


def test_the_shortest_goes_first_and_equals_by_arrival() -> None:
    line = Line()
    for name, tokens in [("long", 30), ("a", 10), ("middle", 20), ("b", 10)]:
        line.push(name, tokens)
    assert line.names() == ["a", "b", "middle", "long"]
    assert line.queue.first(0.0, NEVER) is None


def test_without_shortest_first_arrival_counts() -> None:
    line = Line(shortest_first=False)
    for name, tokens in [("long", 30), ("a", 10), ("middle", 20)]:
        line.push(name, tokens)
    assert line.names() == ["long", "a", "middle"]


def test_the_oldest_goes_first_once_it_has_waited_for_the_bound() -> None:
    line = Line()
    line.push("long", 100, since=0.0)
    line.push("longer", 200, since=1.0)
    line.push("short", 1, since=1.5)
    assert line.serve(now=1.9, wait_s=2.0).request.request_id == "short"
    line.push("shorter", 1, since=1.9)
    assert line.serve(now=2.0, wait_s=2.0).request.request_id == "long"
    assert line.serve(now=2.0, wait_s=2.0).request.request_id == "shorter"
    assert line.serve(now=2.0, wait_s=2.0).request.request_id == "longer"


def test_the_waiting_bound_stays_inside_a_tenant() -> None:
    line = Line()
    line.push("paid", 5, tenant="a")
    line.push("old", 10, tenant="a", since=0.0)
    assert line.serve().request.request_id == "paid"
    line.push("new", 10, tenant="b", since=99.0)
    assert line.names(now=100.0, wait_s=2.0) == ["new", "old"]


def test_urgent_ones_go_by_deadline_before_the_shortest() -> None:
    line = Line()
    line.push("short", 1)
    line.push("late", 20, deadline_s=20.0, urgent_at=10.0)
    line.push("soon", 20, deadline_s=15.0, urgent_at=9.0)
    assert line.queue.first(8.0, NEVER).request.request_id == "short"  # type: ignore[union-attr]
    assert line.queue.first(9.5, NEVER).request.request_id == "soon"  # type: ignore[union-attr]
    assert line.names(now=11.0) == ["soon", "late", "short"]


def test_urgency_gains_nothing_against_another_tenant() -> None:
    line = Line()
    for i in range(10):
        line.push(f"hasty-{i}", 10, tenant="hasty", deadline_s=1.0, urgent_at=0.0)
        line.push(f"calm-{i}", 10, tenant="calm")
    served = [line.serve(now=0.5).request.tenant for _ in range(10)]
    assert Counter(served) == {"hasty": 5, "calm": 5}


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(1, 50), min_size=1), min_size=2),
    rounds=st.integers(50, 300),
    shortest_first=st.booleans(),
)
def test_backlogged_tenants_get_equal_tokens(sizes: dict[str, list[int]], rounds: int, shortest_first: bool) -> None:
    """Start-time fair queueing: between two that always wait, tokens differ by no more than their two largest."""
    line = Line(shortest_first=shortest_first)
    fed = dict.fromkeys(sizes, 0)

    def feed(tenant: str) -> None:
        line.push(f"{tenant}{fed[tenant]}", sizes[tenant][fed[tenant] % len(sizes[tenant])], tenant=tenant)
        fed[tenant] += 1

    for tenant in sizes:
        for _ in range(3):
            feed(tenant)
    tokens: Counter[str] = Counter()
    for _ in range(rounds):
        waiting = line.serve()
        tenant = waiting.request.tenant
        tokens[tenant] += int(waiting.cost)
        feed(tenant)
        for one in sizes:
            for other in sizes:
                assert abs(tokens[one] - tokens[other]) <= max(sizes[one]) + max(sizes[other])


def test_a_flood_delays_a_newcomer_by_one_request() -> None:
    line = Line(shortest_first=False)
    for i in range(1000):
        line.push(f"flood-{i}", 10, tenant="flood")
    for _ in range(100):
        line.serve()
    line.push("one", 10, tenant="newcomer")
    assert "newcomer" in [line.serve().request.tenant for _ in range(2)]


def test_nobody_saves_up_by_staying_away() -> None:
    line = Line(shortest_first=False)
    line.push("first", 10, tenant="away")
    line.serve()
    for i in range(300):
        line.push(f"busy-{i}", 10, tenant="busy")
    for _ in range(100):
        line.serve()
    for i in range(100):
        line.push(f"away-{i}", 10, tenant="away")
    served = Counter(line.serve().request.tenant for _ in range(40))
    assert abs(served["away"] - served["busy"]) <= 2


def test_those_who_leave_unserved_pay_nothing() -> None:
    line = Line(shortest_first=False)
    withdrawn = [line.push(f"gone-{i}", 1000, tenant="a") for i in range(5)]
    line.push("a", 10, tenant="a")
    line.push("b", 10, tenant="b")
    for waiting in withdrawn:
        line.queue.remove(waiting, served=False)
    assert line.names() == ["a", "b"]


def test_unfair_is_one_line() -> None:
    line = Line(shortest_first=False, fair=False)
    for i in range(3):
        line.push(f"flood-{i}", tenant="flood")
    line.push("one", tenant="one")
    assert line.names() == ["flood-0", "flood-1", "flood-2", "one"]


def kept(queue: ClassQueue) -> int:
    """Entries in all of a queue's inner structures."""
    tenants = queue._tenants.values()
    return sum(len(t.heap) + len(t.arrivals) + len(t.calm) + len(t.urgent) for t in tenants) + len(queue._turns)


@pytest.mark.parametrize("shortest_first", [True, False])
def test_what_has_gone_is_not_kept(shortest_first: bool) -> None:
    """Withdrawn from the back of the line, where no heap ever looks."""
    line = Line(shortest_first=shortest_first)
    staying = line.push("stays", 1, tenant="t")
    for i in range(20_000):
        waiting = line.push(f"r{i}", 100, tenant="t", deadline_s=1e6, urgent_at=1e5)
        line.queue.remove(waiting, served=False)
        assert kept(line.queue) < 600
    assert line.serve() is staying


def test_tenants_who_are_gone_are_not_kept() -> None:
    line = Line()
    for i in range(5000):
        line.push("r", 10, tenant=f"t{i}")
        line.push("other", 10, tenant=f"other{i}")
        line.serve()
        line.serve()
    assert kept(line.queue) < 50


def test_a_flood_costs_each_request_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons of heap entries, counted: near log2(n) a request, whatever its tenant has waiting."""
    from headrace.scheduler.policy import class_queue

    operations = Counter[str]()
    for name in ("heappush", "heappop", "heapreplace", "heapify"):
        plain = getattr(class_queue.heapq, name)

        def counted(heap: list[object], *args: object, _plain=plain, _name=name) -> object:  # type: ignore[no-untyped-def]
            operations["steps"] += len(heap) if _name == "heapify" else max(len(heap), 2).bit_length()
            return _plain(heap, *args)

        monkeypatch.setattr(class_queue.heapq, name, counted)
    line = Line()
    num = 20_000
    for i in range(num):
        line.push(f"r{i}", (i * 7919) % 997, tenant="flood", deadline_s=1e6, urgent_at=1e5)
    for i in range(num):
        line.push(f"s{i}", 10, tenant=f"t{i % 100}")
        line.serve(now=1.0, wait_s=2.0)
    assert operations["steps"] < 2 * num * 120
