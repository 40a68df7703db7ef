"""Who makes room: lawful, no more than is needed, KV kept while there is memory."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.core.request import QosClass
from headrace.scheduler.policy.commands import Displacement
from headrace.scheduler.policy.displacement import make_room
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.ledger import Ledger, Reservation, Shape, need_of

BLOCK = 10


def request(name: str, qos: QosClass, *, blocks: int = 1, n: int = 1) -> Request:
    """`blocks` for each of its answers."""
    return Request(1, name, "g", "m", 0, blocks * BLOCK, qos, n=n)


def rush(*, blocks: int = 1, n: int = 1) -> Request:
    return request("rush", QosClass.REALTIME, blocks=blocks, n=n)


def ledger(num_slots: int, num_blocks: int, *running: Request) -> Ledger:
    made = Ledger(Shape(num_slots, num_blocks, BLOCK))
    for each in running:
        made.reserve(each.request_id, Reservation(need_of(each, BLOCK), each, started=False))
        made.start(each.request_id)
    return made


def test_the_last_started_of_batch_goes_first_and_keeps_its_kv() -> None:
    full = ledger(
        3,
        100,
        request("b1", QosClass.BATCH),
        request("b2", QosClass.BATCH),
        request("n1", QosClass.NORMAL),
    )
    assert make_room(rush(), full) == (Displacement("b2", drop_kv=False),)
    assert make_room(rush(n=3), full) == tuple(Displacement(each, drop_kv=False) for each in ("b2", "b1", "n1"))


def test_realtime_is_never_displaced() -> None:
    full = ledger(2, 100, request("a", QosClass.REALTIME), request("b", QosClass.REALTIME))
    assert make_room(rush(), full) is None
    assert make_room(rush(n=2), ledger(2, 100, request("a", QosClass.REALTIME), request("b", QosClass.BATCH))) is None


def test_what_has_not_started_is_not_displaced() -> None:
    full = ledger(1, 100)
    full.reserve("b", Reservation(need_of(request("b", QosClass.BATCH), BLOCK), request("b", QosClass.BATCH), False))
    assert make_room(rush(), full) is None
    full.start("b")
    assert make_room(rush(), full) == (Displacement("b", drop_kv=False),)


def test_one_of_unknown_size_is_not_displaced() -> None:
    full = ledger(1, 100)
    full.reserve_unknown("old")
    assert make_room(rush(), full) is None


def test_where_memory_is_short_those_that_pause_lose_theirs_first() -> None:
    tight = ledger(
        2,
        10,
        request("b1", QosClass.BATCH, blocks=5),
        request("b2", QosClass.BATCH, blocks=5),
    )
    tight.pause("b2", drop_kv=False, most=9)
    assert make_room(rush(blocks=5), tight) == (Displacement("b2", drop_kv=True),)
    tight.pause("b2", drop_kv=True)
    assert make_room(rush(blocks=5), tight) is None or tight.num_blocks == 5
    tight.reserve("r", Reservation(need_of(rush(blocks=5), BLOCK), rush(blocks=5), started=True))
    assert make_room(rush(blocks=5), tight) == (Displacement("b1", drop_kv=True),)


def test_one_that_alone_suffices_goes_alone() -> None:
    """The last started holds one slot, the one before it all that are wanted."""
    full = ledger(5, 100, request("wide", QosClass.BATCH, n=4), request("last", QosClass.BATCH))
    assert make_room(rush(n=4), full) == (Displacement("wide", drop_kv=False),)


def test_kv_is_dropped_only_where_it_helps() -> None:
    full = ledger(
        3, 12, request("big", QosClass.BATCH, blocks=9), request("b", QosClass.BATCH), request("n", QosClass.NORMAL)
    )
    full.pause("b", drop_kv=False, most=9)
    assert make_room(rush(blocks=9), full) == (Displacement("big", drop_kv=True),)


def outcome(made: Ledger, displaced: tuple[Displacement, ...]) -> tuple[int, int]:
    """Slots and blocks free once they have made room."""
    slots, blocks = made.shape.num_slots - made.num_slots, made.shape.num_blocks - made.num_blocks
    for each in displaced:
        held = made.reservations[each.request_id]
        slots += held.held.num_slots
        blocks += held.held.num_blocks if each.drop_kv else 0
    return slots, blocks


held = st.tuples(
    st.sampled_from(QosClass),
    st.integers(1, 4),
    st.integers(0, 6),
    st.sampled_from(["runs", "runs", "runs", "paused", "dropped", "unstarted", "resumed", "keeps its place"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(held, max_size=8), st.integers(1, 6), st.integers(0, 12), st.integers(0, 2), st.integers(0, 6))
def test_room_is_made_lawfully_and_with_no_one_too_many(
    running: list[tuple[QosClass, int, int, str]], n: int, blocks: int, spare_slots: int, spare_blocks: int
) -> None:
    made = Ledger(Shape(10_000, 10_000, BLOCK))
    for number, (qos, each_n, each_blocks, what) in enumerate(running):
        one = request(f"r{number}", qos, blocks=each_blocks, n=each_n)
        made.reserve(one.request_id, Reservation(need_of(one, BLOCK), one, started=False))
        if what != "unstarted":
            made.start(one.request_id)
        if what in ("paused", "dropped", "resumed", "keeps its place"):
            made.pause(one.request_id, drop_kv=what == "dropped", most=1 if what == "keeps its place" else 9)
        if what in ("resumed", "keeps its place"):
            made.resume(one.request_id)
        if what == "keeps its place":
            made.confirm({each for each in made.resumed if each != one.request_id})
    made.shape = Shape(max(made.num_slots + spare_slots, 1), max(made.num_blocks + spare_blocks, 1), BLOCK)
    wanted = rush(blocks=blocks, n=n)
    need = need_of(wanted, BLOCK)
    assume(not (made.has_slots(need) and made.has_blocks(need)))
    states = {f"r{i}": what for i, (qos, _, _, what) in enumerate(running) if qos is not QosClass.REALTIME}
    may_drop = {request_id for request_id, what in states.items() if what in ("runs", "paused", "dropped")}
    before = {i: (r.paused, r.dropped) for i, r in made.reservations.items()}
    displaced = make_room(wanted, made)
    assert {i: (r.paused, r.dropped) for i, r in made.reservations.items()} == before, "a look changes nothing"
    everything = tuple(Displacement(each, drop_kv=True) for each in may_drop)

    def enough(some: tuple[Displacement, ...]) -> bool:
        slots, free = outcome(made, some)
        return slots >= need.num_slots and free >= need.num_blocks

    if displaced is None:
        assert not enough(everything), "room could have been made"
        return
    assert len({each.request_id for each in displaced}) == len(displaced)
    assert {each.request_id for each in displaced} <= may_drop
    assert all(each.drop_kv for each in displaced if each.request_id in made.paused)
    assert enough(displaced)
    for i, each in enumerate(displaced):
        rest = (*displaced[:i], *displaced[i + 1 :])
        assert not enough(rest), f"{each} is one too many"
        kept = (*displaced[:i], Displacement(each.request_id, drop_kv=False), *displaced[i + 1 :])
        assert not each.drop_kv or not enough(kept), f"{each} loses its KV for nothing"
