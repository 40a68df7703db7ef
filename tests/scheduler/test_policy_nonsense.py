"""Whatever comes in, `step` does not raise and its books stay right: peers that lie, numbers without end."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Command, Dismiss, Dispatch, Refuse, Resume
from headrace.scheduler.policy.events import (
    Configured,
    Drain,
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    GatewayLost,
    Gathered,
    LoadedModel,
    Occurrence,
    Padding,
    Request,
    Submitted,
    Tick,
    Withdrawn,
)
from headrace.scheduler.policy.limits import Bounds, BucketRule, Limits, Order
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State

YEAR_S = 365 * 86_400.0
HUGE = 10**400
LIMITS = Limits(Bounds(100, 100_000), lease_s=1e9, batch_tokens=1000)
MODEL = (LoadedModel("m", Precision.INT8, 1000),)

ids = st.sampled_from(["r1", "r2", "r3", "r4", "r5", ""])
executor_ids = st.sampled_from(["e1", "e2", ""])
numbers = st.sampled_from([0, 1, 2, 5, 40, 100]) | st.sampled_from([-1, 2**31, 2**63, HUGE, -HUGE])
seconds = st.none() | st.sampled_from([0.0, 1.0, 5.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324])
some_ids = st.lists(ids, max_size=5).map(tuple)
paddings = st.builds(Padding, numbers, numbers, st.booleans())
loaded = st.lists(
    st.builds(LoadedModel, st.sampled_from(["m", "n", ""]), st.sampled_from(Precision), numbers, st.none() | paddings),
    max_size=3,
).map(tuple)
samples = st.lists(st.builds(StepSample, numbers, numbers, st.floats() | st.sampled_from([0.01, 0.1])), max_size=3).map(
    tuple
)
limits = st.builds(
    Limits,
    st.builds(Bounds, st.sampled_from([1, 3, 10**7]), st.sampled_from([1, 100, 10**12])),
    lease_s=st.sampled_from([1.0, 1e9]),
    batch_tokens=st.sampled_from([1, 10**9]),
    start_timeout_s=st.sampled_from([0.1, 3600.0]),
    grace_s=st.sampled_from([0.0, 5.0]),
    order=st.sampled_from(Order),
    realtime_wait_s=st.sampled_from([0.0, 2.0, math.inf]),
    longest_wait_s=st.sampled_from([0.0, 60.0, math.inf]),
    batch_share=st.sampled_from([0.01, 0.5, 0.99]),
    batch_floor=st.sampled_from([0.01, 0.99]),
    quota_load=st.sampled_from([0.0, 0.7, 0.99]),
    max_displacements=st.sampled_from([0, 1, 2, 1000]),
    window_ms=st.sampled_from([0.0, 50.0, 60_000.0]),
    buckets=st.sampled_from(BucketRule),
)
events = st.one_of(
    st.builds(
        lambda *args: Submitted(Request(0, *args)),
        ids,
        st.sampled_from(["g1", "g2", ""]),
        st.sampled_from(["m", "n", ""]),
        numbers,
        numbers,
        st.sampled_from(QosClass),
        st.sampled_from(["", "t1", "t2"]),
        numbers | st.just(1),
        st.sampled_from(Precision),
        seconds,
    ),
    st.builds(Withdrawn, st.sampled_from(["g1", "g2"]), ids),
    st.builds(GatewayLost, st.sampled_from(["g1", "g2"])),
    st.builds(ExecutorEnlisted, executor_ids, st.just("a"), loaded, numbers, numbers, numbers, some_ids, some_ids),
    st.builds(ExecutorEnlisted, executor_ids, st.just("a"), st.just(MODEL), st.just(2), st.just(20), st.just(16)),
    st.builds(
        ExecutorReported,
        executor_ids,
        some_ids,
        some_ids,
        st.sampled_from([False, False, True]),
        st.lists(numbers, max_size=5).map(tuple),
        some_ids,
        samples,
    ),
    st.builds(ExecutorLost, executor_ids),
    st.builds(Configured, limits),
    st.just(Tick()),
)
few = st.sampled_from([0, 1, 2, 5, 40])
padded = st.builds(
    LoadedModel,
    st.just("m"),
    st.just(Precision.INT8),
    few | st.just(2**32),
    st.builds(Padding, st.sampled_from([1, 2, 2**32]), st.sampled_from([1, 16, 2**32]), st.booleans()),
)
padded_submissions = st.builds(
    lambda number, tokens, qos_class, deadline_s: Submitted(
        Request(0, f"r{number}", "g1", "m", tokens, 0, qos_class, "", 1, Precision.ANY, deadline_s)
    ),
    st.integers(0, 50),
    few,
    st.sampled_from(QosClass),
    seconds,
)


def padded_events(model: LoadedModel) -> st.SearchStrategy[Occurrence]:
    """Mostly of executors that have all loaded this one."""
    enlisted = st.builds(
        ExecutorEnlisted, executor_ids, st.just("a"), st.just((model,)), st.sampled_from([2, 40]), st.just(40), few
    )
    kinds = (padded_submissions, enlisted, events)
    return st.sampled_from([0, 0, 0, 0, 1, 2]).flatmap(lambda kind: kinds[kind])


times = st.sampled_from([0.0, 0.1, 1.0, 5.0, -3.0, YEAR_S, 100 * YEAR_S, -YEAR_S, math.nan])


def check(state: State) -> None:
    """The books agree with each other."""
    holders = set()
    for executor in state.registry.executors.values():
        ledger, held = executor.ledger, executor.ledger.reservations
        assert ledger.num_slots == sum(each.held.num_slots for each in held.values()) >= 0
        assert ledger.num_blocks == sum(each.held.num_blocks for each in held.values()) >= 0
        assert set(ledger.paused) == {i for i, each in held.items() if each.paused}
        assert all(ledger.reservations.get(i) is each and not each.paused for i, each in ledger.resumed.items())
        for pool in executor.pools:
            ledgers = [member.ledger for member in pool.members.values()]
            assert pool.slots_in_use == sum(each.num_slots for each in ledgers)
            assert pool.blocks_in_use == sum(each.num_blocks for each in ledgers)
            assert pool.num_slots == sum(each.shape.num_slots for each in ledgers)
            assert executor.has_victims == (executor.executor_id in pool.victims)
        holders |= {(i, executor.executor_id) for i in held}
    active = [(i, each) for i, executor_ids in state.active.items() for each in executor_ids]
    assert len(active) == len(set(active))
    assert set(active) == holders
    assert set(state.leases._due) == set(state.registry.executors)
    assert set(state.deadlines._due) <= set(state.queues.by_id)
    in_lanes = [waiting.number for lane in state.queues.lanes() for waiting in lane]
    assert sorted(in_lanes) == sorted(waiting.number for waiting in state.queues.by_id.values())
    tally = state.tally
    over = tally.refused + tally.withdrawn + tally.finished + tally.lost + tally.unstarted
    placed = sum(
        each.request is not None for e in state.registry.executors.values() for each in e.ledger.reservations.values()
    )
    assert tally.submitted == len(state.queues.by_id) + placed + over


History = list[tuple[list[Occurrence], float]]


def histories(events: st.SearchStrategy[Occurrence]) -> st.SearchStrategy[History]:
    return st.lists(st.tuples(st.lists(events, min_size=1, max_size=4), times), max_size=25)


@settings(max_examples=500, deadline=None)
@given(limits, histories(events))
def test_nothing_that_comes_breaks_the_machine(first: Limits, history: History) -> None:
    survives(first, history)


@settings(max_examples=300, deadline=None)
@given(limits, padded.flatmap(lambda model: histories(padded_events(model))))
def test_nothing_breaks_padded_batches(first: Limits, history: History) -> None:
    survives(first, history)


def survives(first: Limits, history: History) -> None:
    state, now = State(first), 0.0
    for occurrences, later in history:
        now = state.now + later
        step(state, Gathered(tuple(occurrences)), now)
        check(state)
    step(state, Drain(), now)
    check(state)
    assert not state.queues.by_id


class Run:
    """One history written out, checked after every step."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.state = State(limits)
        self.now = 0.0
        self.serial = 0

    def __call__(self, *happened: Occurrence) -> list[Command]:
        commands = step(self.state, Gathered(happened), self.now)
        check(self.state)
        return commands

    def request(self, name: str, *, qos: QosClass = QosClass.NORMAL, prompt: int = 10, n: int = 1, model: str = "m",
                deadline_s: float | None = None, gateway: str = "g") -> Submitted:  # fmt: skip
        self.serial += 1
        return Submitted(Request(self.serial, name, gateway, model, prompt, 6, qos, n=n, deadline_s=deadline_s))

    def placed(self, *happened: Occurrence) -> list[str]:
        dispatched = [command for command in self(*happened) if isinstance(command, Dispatch)]
        return [member.request.request_id for command in dispatched for member in command.members]


def enlisted(name: str = "e1", *, slots: int = 2, blocks: int = 20, running: tuple[str, ...] = (),
             paused: tuple[str, ...] = ()) -> ExecutorEnlisted:  # fmt: skip
    return ExecutorEnlisted(name, f"{name}:1", MODEL, slots, blocks, 16, running, paused)


def test_an_id_that_waits_and_is_started_by_an_executor_is_not_placed_on_it_twice() -> None:
    """It was placed, given up unstarted, submitted again; then its first life starts after all."""
    run = Run()
    run(enlisted(slots=1), run.request("other"))
    run(run.request("r"))
    run(ExecutorReported("e1", started_ids=("r", "other")))
    assert run.placed(ExecutorReported("e1", finished_ids=("other",))) == []
    assert run.placed(ExecutorReported("e1", finished_ids=("r",))) == ["r"]


def test_an_id_that_runs_unknown_is_not_placed_beside_itself_by_displacing() -> None:
    run = Run(replace(LIMITS, grace_s=5.0))
    run(run.request("r", qos=QosClass.REALTIME))
    run(enlisted(slots=2, running=("r",)), run.request("batch", qos=QosClass.BATCH))
    run(ExecutorReported("e1", started_ids=("batch",)))
    assert "r" not in run.placed(run.request("more", qos=QosClass.BATCH), Tick())
    run(ExecutorReported("e1", finished_ids=("r",)))


def test_an_executor_may_report_everything_as_paused() -> None:
    run = Run()
    run(enlisted(), run.request("a"), run.request("b"), run.request("c"))
    commands = run(ExecutorReported("e1", ("a", "b"), (), False, (), ("a", "b", "c", "nobody")))
    assert [command for command in commands if isinstance(command, Resume)] == [
        Resume("e1", ("a",)),
        Resume("e1", ("b",)),
    ]
    assert not [c for c in run(ExecutorReported("e1", (), (), False, (), ("a", "b"))) if isinstance(c, Resume)]


def test_an_executor_may_enlist_with_everybody_paused() -> None:
    run = Run()
    everybody = ("a", "b", "c", "d")
    commands = run(enlisted(slots=2, running=everybody, paused=everybody))
    assert Resume("e1", ("a", "b")) in commands
    assert Resume("e1", ("c",)) in run(ExecutorReported("e1", finished_ids=("a",), paused_ids=("c", "d")))


def test_what_was_never_started_may_finish() -> None:
    run = Run()
    run(enlisted(slots=1), run.request("a"), run.request("b"))
    assert run.placed(ExecutorReported("e1", finished_ids=("a", "a", "nobody"), output_tokens=(5,))) == ["b"]


@pytest.mark.parametrize("grace_s", [0.0, 60.0])
@pytest.mark.parametrize("field", ["prompt_tokens", "max_output_tokens", "n"])
@pytest.mark.parametrize("value", [-1, HUGE, -HUGE, 2**63])
def test_numbers_that_no_request_has_are_refused(grace_s: float, field: str, value: int) -> None:
    run = Run(replace(LIMITS, grace_s=grace_s))
    asked = Request(1, "r", "g", "m", 10, 10)
    commands = run(Submitted(replace(asked, **{field: value})))
    assert [type(command) for command in commands] == [Refuse]


@pytest.mark.parametrize("deadline_s", [math.nan, 0.0, -1.0, -math.inf])
def test_a_deadline_that_is_none_is_refused(deadline_s: float) -> None:
    run = Run()
    assert run.placed(enlisted(), run.request("r", deadline_s=deadline_s)) == []
    assert not run.state.queues.by_id


def test_an_endless_deadline_never_comes() -> None:
    run = Run()
    run(enlisted(slots=1), run.request("a"), run.request("b", deadline_s=math.inf), run.request("c", deadline_s=1e308))
    run.now = 1e6
    assert run.placed(ExecutorReported("e1", finished_ids=("a",))) == ["b"]


def test_years_pass_at_once() -> None:
    run = Run(replace(LIMITS, lease_s=3.0))
    run(enlisted(), run.request("a"), run.request("b"), run.request("c"))
    run.now = 1000 * YEAR_S
    commands = run(Tick())
    assert [type(command) for command in commands] == [Dismiss, Refuse]
    assert run.placed(enlisted(), run.request("d")) == ["d"]
    run.now = 0.0
    assert run.placed(run.request("e")) == ["e"]
    assert run.state.now == 1000 * YEAR_S


def test_a_thousand_models() -> None:
    run = Run()
    models = tuple(LoadedModel(f"m{i}", Precision.INT8, 1000) for i in range(1000))
    run(ExecutorEnlisted("e1", "a", models, 1, 100, 16))
    run(*(run.request(f"r{i}", model=f"m{i % 1000}", qos=QosClass(i % 3 + 1)) for i in range(90)))
    served = []
    for _ in range(90):
        (running,) = run.state.active
        served.append(running)
        run(ExecutorReported("e1", finished_ids=(running,)))
    assert sorted(served) == sorted(f"r{i}" for i in range(90))
    run(ExecutorLost("e1"))
    assert run.state.registry.precisions("m1") == []


def test_more_answers_than_slots_are_refused_or_wait_for_a_wider_executor() -> None:
    run = Run()
    (refused,) = [c for c in run(enlisted(slots=2), run.request("r", n=3)) if isinstance(c, Refuse)]
    assert refused.refusal.field == "n"
    assert run.placed(enlisted("e2", slots=3), run.request("r", n=3)) == ["r"]


def test_an_executor_that_shrinks_owes_more_than_it_has_until_its_requests_end() -> None:
    run = Run()
    run(enlisted(slots=4), *(run.request(f"r{i}") for i in range(4)))
    run(enlisted(slots=1, blocks=3, running=("r0", "r1", "r2", "r3")), run.request("later"))
    for i in range(3):
        assert run.placed(ExecutorReported("e1", finished_ids=(f"r{i}",))) == []
    assert run.placed(ExecutorReported("e1", finished_ids=("r3",))) == ["later"]


def test_a_displaced_one_goes_on_in_what_a_wide_victim_leaves_over() -> None:
    """The victim gave three slots, one is taken: who paused before it goes on once the executor has reported."""
    run = Run()
    run(
        enlisted(slots=4, blocks=100),
        run.request("wide", qos=QosClass.NORMAL, n=3),
        run.request("b", qos=QosClass.BATCH),
    )
    run(ExecutorReported("e1", started_ids=("wide", "b")))
    run(run.request("now", qos=QosClass.REALTIME))
    assert list(run.state.registry.executors["e1"].ledger.paused) == ["b"]
    run(run.request("now-2", qos=QosClass.REALTIME))
    assert list(run.state.registry.executors["e1"].ledger.paused) == ["b", "wide"]
    assert Resume("e1", ("b",)) in run(ExecutorReported("e1", paused_ids=("b", "wide")))


def test_a_large_realtime_request_is_not_overtaken_by_displacing() -> None:
    """Small ones of another model may not take by displacing what it waits for."""
    run = Run()
    both = (LoadedModel("m", Precision.INT8, 1000), LoadedModel("n", Precision.INT8, 1000))
    run(
        ExecutorEnlisted("e1", "a", both, 2, 100, 16),
        run.request("holds", qos=QosClass.REALTIME),
        run.request("batch", qos=QosClass.BATCH),
    )
    run(ExecutorReported("e1", started_ids=("holds", "batch")))
    assert run.placed(run.request("wide", qos=QosClass.REALTIME, n=2)) == []
    assert run.placed(run.request("small", qos=QosClass.REALTIME, model="n")) == []
    assert run.placed(ExecutorReported("e1", finished_ids=("holds",))) == ["wide"]


def test_a_displaced_one_goes_on_alone_where_its_executor_came_back_too_small() -> None:
    run = Run()
    run(enlisted(slots=2, blocks=20), run.request("wide", qos=QosClass.BATCH, n=2))
    run(ExecutorReported("e1", started_ids=("wide",)))
    run(run.request("now", qos=QosClass.REALTIME))
    running = ("wide", "now")
    assert Resume("e1", ("wide",)) not in run(enlisted(slots=1, blocks=20, running=running, paused=("wide",)))
    assert Resume("e1", ("wide",)) in run(ExecutorReported("e1", finished_ids=("now",), paused_ids=("wide",)))
