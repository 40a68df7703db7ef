"""The account of one executor, through every order of pausing, resuming, confirming and doubting."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.request import QosClass
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.ledger import Ledger, Need, Reservation, Shape, need_of

SHAPE = Shape(8, 100, 16)
KNOWN = [f"r{i}" for i in range(8)]
UNKNOWN = ["x1", "x2"]


class LedgerMachine(RuleBasedStateMachine):
    """`truth` says of each id: unstarted, runs, paused, dropped, resumed; and how often it was displaced."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(SHAPE)
        self.truth: dict[str, str] = {}
        self.needs: dict[str, Need] = {}
        self.classes: dict[str, QosClass] = {}
        self.times: dict[str, int] = {}

    def drawn(self, data: st.DataObject, *states: str) -> str | None:
        ids = sorted(i for i, state in self.truth.items() if state in states)
        return data.draw(st.sampled_from(ids)) if ids else None

    @initialize()
    def begin(self) -> None:
        """Nobody holds anything."""
        assert (self.ledger.num_slots, self.ledger.num_blocks, self.ledger.load) == (0, 0, 0.0)

    @rule(
        request_id=st.sampled_from(KNOWN),
        prompt=st.integers(0, 100),
        most=st.integers(0, 60),
        n=st.integers(1, 3),
        qos=st.sampled_from(QosClass),
    )
    def reserve(self, request_id: str, prompt: int, most: int, n: int, qos: QosClass) -> None:
        if request_id not in self.truth:
            request = Request(1, request_id, "g", "m", prompt, most, qos, n=n)
            self.needs[request_id] = need_of(request, SHAPE.block_tokens)
            self.ledger.reserve(request_id, Reservation(self.needs[request_id], request, started=False))
            self.truth[request_id], self.classes[request_id], self.times[request_id] = "unstarted", qos, 0

    @rule(request_id=st.sampled_from(UNKNOWN), paused=st.booleans())
    def hear_of(self, request_id: str, paused: bool) -> None:
        if request_id not in self.truth:
            self.ledger.reserve_unknown(request_id, paused=paused)
            self.needs[request_id] = Need(1, SHAPE.num_blocks // SHAPE.num_slots)
            self.truth[request_id], self.times[request_id] = "paused" if paused else "runs", 0

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.truth)))
        self.ledger.start(request_id)  # a second word of it changes nothing
        if self.truth[request_id] == "unstarted":
            self.truth[request_id] = "runs"

    @rule(request_id=st.sampled_from([*KNOWN, *UNKNOWN]))
    def release(self, request_id: str) -> None:
        released = self.ledger.release(request_id)
        assert (released is not None) == (self.truth.pop(request_id, None) is not None)

    @rule(data=st.data(), drop_kv=st.booleans(), most=st.none() | st.integers(1, 3))
    def pause(self, data: st.DataObject, drop_kv: bool, most: int | None) -> None:
        if (request_id := self.drawn(data, "runs", "paused", "dropped", "resumed")) is None:
            return
        state = self.truth[request_id]
        self.ledger.pause(request_id, drop_kv=drop_kv, most=most)
        self.truth[request_id] = "dropped" if drop_kv or state == "dropped" else "paused"
        held = self.ledger.reservations[request_id]
        if state in ("runs", "resumed") and most is not None:
            self.times[request_id] += 1
            assert held.keeps_place == (self.times[request_id] >= most)
        assert held.num_displacements == self.times[request_id], "only a displacement counts"

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        if (request_id := self.drawn(data, "paused", "dropped")) is not None:
            held = self.ledger.reservations[request_id]
            over = max(self.ledger.num_slots - SHAPE.num_slots, self.ledger.num_blocks - SHAPE.num_blocks)
            can = self.ledger.can_resume(held)
            self.ledger.resume(request_id)
            after = max(self.ledger.num_slots - SHAPE.num_slots, self.ledger.num_blocks - SHAPE.num_blocks)
            assert can == (after <= 0) or over > 0
            self.truth[request_id] = "resumed"

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        still = data.draw(st.sets(st.sampled_from([*KNOWN, *UNKNOWN]), max_size=4))
        self.ledger.confirm(still)
        for request_id, state in self.truth.items():
            if state == "resumed" and request_id not in still:
                self.truth[request_id] = "runs"

    @rule(data=st.data())
    def doubt(self, data: st.DataObject) -> None:
        if (request_id := self.drawn(data, "runs")) is not None:
            self.ledger.doubt(request_id)
            self.truth[request_id] = "resumed"

    @invariant()
    def the_sums_are_what_is_held(self) -> None:
        slots = sum(self.needs[i].num_slots for i, state in self.truth.items() if state not in ("paused", "dropped"))
        blocks = sum(self.needs[i].num_blocks for i, state in self.truth.items() if state != "dropped")
        assert (self.ledger.num_slots, self.ledger.num_blocks) == (slots, blocks)
        assert self.ledger.load == max(slots / SHAPE.num_slots, blocks / SHAPE.num_blocks)

    @invariant()
    def everybody_is_listed_where_they_are(self) -> None:
        assert set(self.ledger.paused) == {i for i, state in self.truth.items() if state in ("paused", "dropped")}
        assert set(self.ledger.resumed) == {i for i, state in self.truth.items() if state == "resumed"}

    @invariant()
    def only_those_known_to_run_may_be_displaced(self) -> None:
        for qos in QosClass:
            listed = [request_id for request_id, _ in self.ledger.displaceable(qos)]
            assert set(listed) == {
                i
                for i, state in self.truth.items()
                if state == "runs"
                and i in KNOWN
                and self.classes[i] is qos
                and not self.ledger.reservations[i].keeps_place
            }
            assert self.ledger.has_displaceable(qos) == bool(listed)


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_the_last_to_start_is_displaced_first() -> None:
    ledger = Ledger(SHAPE)
    for name in ("a", "b", "c"):
        request = Request(1, name, "g", "m", 1, 1, QosClass.BATCH)
        ledger.reserve(name, Reservation(Need(1, 1), request, started=False))
    for name in ("b", "c", "a"):
        ledger.start(name)
    assert [name for name, _ in ledger.displaceable(QosClass.BATCH)] == ["a", "c", "b"]
