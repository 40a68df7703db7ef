"""What always holds, whatever happens in whichever order: hypothesis drives the machine against a ledger of its own."""

from collections import Counter, defaultdict
from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any
from unittest import TestCase

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.precision import SERVED_BY
from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Command, Dismiss, Dispatch, Drop, Refuse, Resume
from headrace.scheduler.policy.displacement import make_room
from headrace.scheduler.policy.events import (
    Configured,
    Event,
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    GatewayLost,
    Gathered,
    LoadedModel,
    Request,
    Submitted,
    Tick,
    Withdrawn,
)
from headrace.scheduler.policy.limits import Bounds, Limits, Order
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.placement import Blocked, fits, place
from headrace.scheduler.policy.state import State

GATEWAYS = ("g1", "g2")
EXECUTORS = ("e1", "e2", "e3")
MODELS = ("m", "other")
BOUNDS = Bounds(max_waiting_requests=6, max_waiting_tokens=1500)

requests = st.builds(
    dict,
    request_id=st.sampled_from([f"r{i}" for i in range(12)]),
    gateway_id=st.sampled_from(GATEWAYS),
    model=st.sampled_from(MODELS),
    prompt_tokens=st.integers(0, 90) | st.integers(-1, 260),
    max_output_tokens=st.integers(0, 60),
    qos_class=st.sampled_from(QosClass),
    n=st.sampled_from([1, 1, 1, 2, 3, 4, 0]),
    precision=st.sampled_from([Precision.ANY, *Precision]),
    tenant=st.sampled_from(["", "t1", "t2"]),
    deadline_s=st.none() | st.floats(0, 30),
)
models = st.lists(
    st.builds(LoadedModel, st.sampled_from(MODELS), st.sampled_from(Precision), st.sampled_from([128, 300])),
    min_size=1,
    max_size=3,
)


def num_blocks(request: Request, block_tokens: int) -> int:
    """Counted one by one: an answer may write to a block of its own only where the prompt does not fill it."""
    last = range(request.prompt_tokens + request.max_output_tokens)
    full = request.prompt_tokens // block_tokens
    return len(
        {
            (None if token // block_tokens < full else answer, token // block_tokens)
            for answer in range(request.n)
            for token in last
        }
    )


class SchedulerMachine(RuleBasedStateMachine):
    """`where` follows each submission by its serial; every submission is in exactly one place.

    At its end a history is drained: what runs finishes one by one, nothing new comes, and nobody may be left.
    """

    twins = False  # whether a second machine must do the same
    capacities = ((6, 40), (3, 20))  # slots and blocks

    def __init__(self) -> None:
        super().__init__()
        self.state = State(Limits(BOUNDS, lease_s=15.0, batch_tokens=150))
        self.twin = deepcopy(self.state) if self.twins else None
        self.sound = True
        self.now = 0.0
        self.serial = 0
        self.where: dict[int, str] = {}
        self.by_serial: dict[int, Request] = {}
        self.placed_at: dict[int, str] = {}
        self.started: set[int] = set()
        self.ever_placed: Counter[int] = Counter()
        self.paused: dict[str, list[str]] = defaultdict(list)  # by executor, as the commands have it
        self.left_over: set[str] = set()  # executors that have displaced since their last report

    def happen(self, event: Event) -> list[Command]:
        self.sound = False
        for occurrence in event.occurrences if isinstance(event, Gathered) else (event,):
            match occurrence:
                case ExecutorEnlisted():
                    self.paused[occurrence.executor_id] = [
                        i for i in occurrence.running_ids if i in occurrence.paused_ids
                    ]
                    self.left_over.discard(occurrence.executor_id)
                case ExecutorReported(executor_id):
                    self.left_over.discard(executor_id)
        commands = step(self.state, event, self.now)
        if self.twin:
            assert commands == step(self.twin, event, self.now), "the same inputs gave other commands"
        for command in commands:
            match command:
                case Dispatch(_, executor_id, _, members, _):
                    assert members
                    if len(members) > 1:
                        assert sum(member.request.prompt_tokens for member in members) <= 150
                    for member in members:
                        self._placed(member.request, executor_id, member.precision)
                        assert member.request.qos_class is QosClass.REALTIME or not member.displaced
                        for displaced in member.displaced:
                            self._displaced(executor_id, displaced.request_id)
                case Refuse(request, _):
                    assert self.where[request.serial] in ("new", "waiting")
                    self.where[request.serial] = "refused"
                case Resume(executor_id, request_ids):
                    ledger = self.state.registry.executors[executor_id].ledger
                    assert all(not ledger.reservations[each].paused for each in request_ids)
                    self.paused[executor_id] = [i for i in self.paused[executor_id] if i not in request_ids]
                case Drop(request):
                    assert self.where[request.serial] in ("new", "waiting")
                    self.where[request.serial] = "withdrawn"
        for serial, place_ in self.where.items():
            if place_ == "new":
                self.where[serial] = "waiting"
        for serial in self.placed_at.keys() - self.held():
            self.where[serial] = "gone"
            del self.placed_at[serial]
        for executor_id, paused in self.paused.items():
            executor = self.state.registry.executors.get(executor_id)
            self.paused[executor_id] = [i for i in paused if executor and i in executor.ledger.reservations]
        self.sound = True
        return commands

    def _displaced(self, executor_id: str, request_id: str) -> None:
        held = self.state.registry.executors[executor_id].ledger.reservations[request_id]
        assert held.request.qos_class is not QosClass.REALTIME
        assert held.started
        assert held.num_displacements <= 2
        self.left_over.add(executor_id)
        if request_id not in self.paused[executor_id]:
            self.paused[executor_id].append(request_id)

    def held(self) -> set[int]:
        """Serials of the submissions that hold capacity."""
        ledgers = [executor.ledger for executor in self.state.registry.executors.values()]
        return {held.request.serial for ledger in ledgers for held in ledger.reservations.values() if held.request}

    def _placed(self, request: Request, executor_id: str, precision: Precision) -> None:
        assert self.where[request.serial] in ("new", "waiting")
        self.where[request.serial] = "placed"
        self.placed_at[request.serial] = executor_id
        self.ever_placed[request.serial] += 1
        executor = self.state.registry.executors[executor_id]
        assert not executor.draining
        shape, held = executor.ledger.shape, executor.ledger.reservations.values()
        unknown = [reservation.held for reservation in held if reservation.request is None]
        running = [h for h in held if h.request and not h.paused]
        with_kv = [h for h in held if h.request and not (h.paused and h.dropped)]
        slots = sum(h.request.n for h in running) + sum(need.num_slots for need in unknown)
        blocks = sum(num_blocks(h.request, shape.block_tokens) for h in with_kv)
        assert slots <= shape.num_slots
        assert blocks + sum(need.num_blocks for need in unknown) <= shape.num_blocks
        assert any(loaded.name == request.model and loaded.precision == precision for loaded in executor.models)
        assert request.precision is Precision.ANY or precision in SERVED_BY[request.precision]

    def submitted(self, fields: dict) -> Submitted:
        self.serial += 1
        request = Request(serial=self.serial, **fields)
        self.where[self.serial] = "new"
        self.by_serial[self.serial] = request
        return Submitted(request)

    @initialize()
    def begin(self) -> None:
        """So that most runs have somebody to place on."""
        loaded = (LoadedModel("m", Precision.INT8, 300), LoadedModel("other", Precision.FP32, 300))
        for number, (num_slots, num_blocks) in enumerate(self.capacities, 1):
            models = loaded if number == 1 else loaded[:1]
            self.happen(ExecutorEnlisted(f"e{number}", f"a:{number}", models, num_slots, num_blocks, 16))

    @rule(fields=requests)
    def submit(self, fields: dict) -> None:
        self.happen(self.submitted(fields))

    @rule(fields=requests, victims=st.sampled_from([QosClass.BATCH, QosClass.NORMAL]), large=st.booleans())
    def rush(self, fields: dict, victims: QosClass, large: bool) -> None:
        """Fills the executors, lets everybody start, then somebody comes who cannot wait."""
        filling = {"qos_class": victims, "n": 1, "prompt_tokens": 70 if large else 8, "deadline_s": None}
        waiting = [i for i in (f"r{i}" for i in range(12)) if i not in self.state.queues.by_id]
        for request_id in waiting[:-1]:
            self.happen(self.submitted(fields | filling | {"request_id": request_id}))
        for executor_id, executor in list(self.state.registry.executors.items()):
            self.happen(ExecutorReported(executor_id, tuple(executor.ledger.reservations)))
        for request_id in waiting[-1:]:
            self.happen(self.submitted(fields | {"request_id": request_id, "qos_class": QosClass.REALTIME}))

    @rule(many=st.lists(requests, min_size=2, max_size=8), executor_id=st.sampled_from(EXECUTORS))
    def gathered(self, many: list[dict], executor_id: str) -> None:
        self.happen(Gathered((*map(self.submitted, many), ExecutorReported(executor_id))))

    @rule(
        executor_id=st.sampled_from(EXECUTORS),
        loaded=models,
        num_slots=st.integers(3, 9) | st.integers(0, 2),
        num_blocks=st.integers(20, 60) | st.integers(0, 20),
        block_tokens=st.sampled_from([16, 8, 16, 8, 0]),
        data=st.data(),
    )
    def enlist(
        self,
        executor_id: str,
        loaded: list[LoadedModel],
        num_slots: int,
        num_blocks: int,
        block_tokens: int,
        data: st.DataObject,
    ) -> None:
        known = self.state.registry.executors.get(executor_id)
        running = (
            data.draw(st.lists(st.sampled_from(sorted(known.ledger.reservations)), unique=True))
            if known and known.ledger.reservations
            else []
        )
        unknown = data.draw(st.lists(st.sampled_from(["x1", "x2"]), unique=True, max_size=1))
        self.happen(
            ExecutorEnlisted(
                executor_id,
                "a:1",
                tuple(loaded),
                num_slots,
                num_blocks,
                block_tokens,
                (*running, *unknown),
                tuple(data.draw(st.lists(st.sampled_from([*running, *unknown]), unique=True)) if running else ()),
            )
        )

    @precondition(lambda self: self.placed_at)
    @rule(data=st.data(), num_finished=st.integers(0, 2))
    def honest_report(self, data: st.DataObject, num_finished: int) -> None:
        """All that were placed there have started, and those that are displaced are."""
        self.truthfully(self.placed_at[data.draw(st.sampled_from(sorted(self.placed_at)))], num_finished)

    def truthfully(self, executor_id: str, num_finished: int) -> None:
        executor = self.state.registry.executors[executor_id]
        running = tuple(i for i in executor.ledger.reservations if i not in self.paused[executor_id])
        self.happen(
            ExecutorReported(
                executor_id,
                running,
                running[:num_finished],
                executor.draining,
                paused_ids=tuple(self.paused[executor_id]),
            )
        )

    @precondition(lambda self: self.placed_at)
    @rule(data=st.data(), finish=st.booleans(), draining=st.sampled_from([False, False, False, True]))
    def report(self, data: st.DataObject, finish: bool, draining: bool) -> None:
        serial = data.draw(st.sampled_from(sorted(self.placed_at)))
        ids = (self.by_serial[serial].request_id,)
        tokens = data.draw(st.lists(st.integers(0, 100), max_size=1))
        paused = data.draw(st.lists(st.sampled_from([f"r{i}" for i in range(12)]), max_size=2))
        steps = data.draw(
            st.lists(st.builds(StepSample, st.integers(-1, 9), st.integers(-1, 99), st.floats()), max_size=3)
        )
        self.happen(
            ExecutorReported(
                self.placed_at[serial], ids, ids if finish else (), draining, tuple(tokens), tuple(paused), tuple(steps)
            )
        )

    @rule(executor_id=st.sampled_from([*EXECUTORS, "unknown"]), ids=st.lists(st.sampled_from(["r1", "r5", "x1", "x9"])))
    def report_nonsense(self, executor_id: str, ids: list[str]) -> None:
        commands = self.happen(ExecutorReported(executor_id, finished_ids=tuple(ids)))
        if executor_id == "unknown":
            assert any(isinstance(command, Dismiss) for command in commands)

    @rule(order=st.sampled_from(Order), most=st.integers(0, 2))
    def configure(self, order: Order, most: int) -> None:
        self.happen(Configured(replace(self.state.limits, order=order, max_displacements=most)))

    @rule(executor_id=st.sampled_from(EXECUTORS))
    def lose_executor(self, executor_id: str) -> None:
        self.happen(ExecutorLost(executor_id))

    @rule(gateway_id=st.sampled_from(GATEWAYS))
    def lose_gateway(self, gateway_id: str) -> None:
        self.happen(GatewayLost(gateway_id))
        assert all(waiting.request.gateway_id != gateway_id for waiting in self.state.queues.by_id.values())

    @rule(gateway_id=st.sampled_from(GATEWAYS), request_id=st.sampled_from([f"r{i}" for i in range(12)]))
    def withdraw(self, gateway_id: str, request_id: str) -> None:
        self.happen(Withdrawn(gateway_id, request_id))

    @rule(seconds=st.floats(-2, 4) | st.floats(-5, 12))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.happen(Tick())

    @invariant()
    def every_submission_is_in_one_place(self) -> None:
        tally = self.state.tally
        waiting = {waiting.request.serial for waiting in self.state.queues.by_id.values()}
        held = self.held()
        assert waiting == {serial for serial, place_ in self.where.items() if place_ == "waiting"}
        assert held == set(self.placed_at)
        over = tally.refused + tally.withdrawn + tally.finished + tally.lost + tally.unstarted
        assert tally.submitted == len(self.where) == len(waiting) + len(held) + over
        assert all(count == 1 for count in self.ever_placed.values()), "placed twice"

    @invariant()
    def displaced_ones_go_on_once_there_is_room(self) -> None:
        """Save in what a wide one's displacement left over: its executor has to report first."""
        for executor_id, executor in self.state.registry.executors.items():
            paused = executor.ledger.paused
            assert set(paused) == set(self.paused[executor_id])
            if paused and executor_id not in self.left_over:
                assert not executor.ledger.can_resume(next(iter(paused.values())))

    @invariant()
    def totals_are_what_is_held(self) -> None:
        for executor in self.state.registry.executors.values():
            ledger = executor.ledger
            held = ledger.reservations.values()
            assert ledger.num_slots == sum(reservation.held.num_slots for reservation in held)
            assert ledger.num_blocks == sum(reservation.held.num_blocks for reservation in held)
            assert set(ledger.paused) == {i for i, reservation in ledger.reservations.items() if reservation.paused}
            assert all(not reservation.paused for reservation in ledger.resumed.values())
            pools = {id(pool): pool for pool in executor.pools}.values()
            for pool in pools:
                ledgers = [member.ledger for member in pool.members.values()]
                assert pool.slots_in_use == sum(each.num_slots for each in ledgers)
                assert pool.blocks_in_use == sum(each.num_blocks for each in ledgers)

    @invariant()
    def queues_keep_their_bounds(self) -> None:
        for qos, backlog in self.state.queues.backlog.items():
            waiting = [w.request for w in self.state.queues.by_id.values() if w.request.qos_class is qos]
            assert backlog.num_requests == len(waiting) <= BOUNDS.max_waiting_requests
            assert backlog.num_tokens == sum(request.tokens for request in waiting)
            assert len(waiting) <= 1 or backlog.num_tokens <= BOUNDS.max_waiting_tokens

    @property
    def may_displace(self) -> bool:
        limits = self.state.limits
        return limits.order is Order.QOS and limits.max_displacements > 0

    @invariant()
    def nobody_waits_who_could_run(self) -> None:
        """The first of a lane has no room anywhere, save where an earlier one waits for the same executor."""
        lanes = list(self.state.queues.lanes())
        firsts = [(lane.rank(lane.blocked), lane) for lane in lanes if lane.blocked and not lane.blocked.gone]
        assert len(firsts) == len(lanes), "a first request was not looked at"
        kept_for_earlier: set[str] = set()
        for lane in (lane for _, lane in sorted(firsts, key=lambda first: first[0])):
            assert lane.blocked is not None
            request = lane.blocked.request
            found = self.state.registry.pool(*lane.key)
            assert found is not None, "nobody is left to serve it"
            members = found[1].members
            free = [executor for executor in members.values() if executor.executor_id not in kept_for_earlier]
            assert isinstance(place(request, free, lambda executor: False), Blocked), f"{request} has room"
            if request.qos_class is QosClass.REALTIME and self.may_displace:
                able = [e for e in free if fits(e.ledger.shape, e.context_of(request.model), request)]
                able = [e for e in able if request.request_id not in e.ledger.reservations and e.has_victims]
                assert all(make_room(request, e.ledger) is None for e in able), f"{request} could have displaced"
            kept_for_earlier |= {
                executor.executor_id
                for executor in members.values()
                if fits(executor.ledger.shape, executor.context_of(request.model), request)
            }

    @invariant()
    def nothing_is_remembered_for_ever(self) -> None:
        state = self.state
        holders = {(i, e.executor_id) for e in state.registry.executors.values() for i in e.ledger.reservations}
        assert holders == {(i, executor_id) for i, executor_ids in state.active.items() for executor_id in executor_ids}
        assert len(state.deadlines) <= len(state.queues.by_id)
        assert len(state.starts) <= len(state.active)
        assert len(state.leases) == len(state.registry.executors)

    def teardown(self) -> None:
        """Nothing new comes, and all that run finish one by one: everybody gets a turn, and all is empty."""
        for _ in range(200):
            busy = [i for i, executor in self.state.registry.executors.items() if executor.ledger.reservations]
            if not (self.sound and busy):
                break
            for executor_id in busy:
                self.truthfully(executor_id, 0)
                self.truthfully(executor_id, 1)
        if self.sound:
            assert not self.held(), "displaced for ever"
            assert not self.state.queues.by_id, "waiting for ever"
            assert not self.state.active


class TwinMachine(SchedulerMachine):
    """The same inputs, the same commands."""

    twins = True


class CrowdedMachine(SchedulerMachine):
    """One small executor: displacement at almost every step."""

    capacities = ((2, 12),)


class FleetMachine(SchedulerMachine):
    capacities = ((6, 40), (3, 20), (1, 60))


def histories(machine: type[RuleBasedStateMachine], number: int) -> type[TestCase]:
    machine.TestCase.settings = settings(
        max_examples=number, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    return machine.TestCase


TestTwins = histories(TwinMachine, 100)
TestScheduler = histories(SchedulerMachine, 250)
TestCrowded = histories(CrowdedMachine, 250)
TestFleet = histories(FleetMachine, 250)


def some(draw: Random, pool: Collection[str], most: int) -> tuple[str, ...]:
    return tuple(draw.sample(sorted(pool), min(len(pool), draw.randint(0, most))))


def walk(machine: SchedulerMachine, draw: Random) -> None:
    """One step of a history, by plain random numbers: many times as fast as what can be shrunk."""

    def fields() -> dict[str, Any]:
        return {
            "request_id": f"r{draw.randrange(12)}",
            "gateway_id": draw.choice(GATEWAYS),
            "model": draw.choice(("m", "m", "other")),
            "prompt_tokens": draw.choice((draw.randint(0, 90), draw.randint(-1, 260))),
            "max_output_tokens": draw.randint(0, 60),
            "qos_class": draw.choice([*QosClass]),
            "tenant": draw.choice(("", "t1", "t2")),
            "n": draw.choice((1, 1, 1, 1, 2, 3, 4, 0)),
            "precision": draw.choice((Precision.ANY, Precision.ANY, *Precision)),
            "deadline_s": draw.choice((None, None, draw.uniform(0, 30))),
        }

    executor_id = draw.choice(EXECUTORS)
    executor = machine.state.registry.executors.get(executor_id)
    held = executor.ledger.reservations if executor else {}
    match draw.choices(range(11), (6, 2, 2, 5, 2, 2, 1, 1, 1, 1, 2))[0]:
        case 0:
            machine.submit(fields())
        case 1:
            machine.rush(fields(), draw.choice((QosClass.BATCH, QosClass.NORMAL)), draw.random() < 0.5)
        case 2:
            machine.gathered([fields() for _ in range(draw.randint(2, 8))], executor_id)
        case 3 if executor:
            machine.truthfully(executor_id, draw.randint(0, 2))
        case 4 if executor:
            ids, steps = some(draw, held, 3), (StepSample(draw.randint(-1, 9), draw.randint(-1, 99), draw.random()),)
            finished, paused = some(draw, ids, 2), some(draw, held, 2)
            machine.happen(ExecutorReported(executor_id, ids, finished, draw.random() < 0.2, (40,), paused, steps))
        case 5:
            names = draw.choices(MODELS, k=draw.randint(1, 3))
            loaded = tuple(LoadedModel(name, draw.choice([*Precision]), draw.choice((128, 300))) for name in names)
            running = (*some(draw, held, len(held)), *some(draw, ("x1", "x2"), 1))
            capacity = draw.randint(0, 9), draw.randint(10, 60), draw.choice((16, 8))
            machine.happen(
                ExecutorEnlisted(executor_id, "a", loaded, *capacity, running, some(draw, running, len(running)))
            )
        case 6:
            machine.configure(draw.choice([*Order, Order.QOS, Order.QOS]), draw.randint(0, 2))
        case 7:
            machine.lose_executor(executor_id)
        case 8:
            machine.lose_gateway(draw.choice(GATEWAYS))
        case 9:
            machine.withdraw(draw.choice(GATEWAYS), f"r{draw.randrange(12)}")
        case 10:
            machine.time_passes(draw.uniform(-2, 6))


@pytest.mark.parametrize("machine_type", [SchedulerMachine, CrowdedMachine, FleetMachine])
@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_histories(machine_type: type[SchedulerMachine], block: int) -> None:
    for seed in range(block * 340, (block + 1) * 340):
        draw, machine = Random(seed), machine_type()
        machine.begin()
        try:
            for _ in range(20):
                walk(machine, draw)
                machine.every_submission_is_in_one_place()
                machine.displaced_ones_go_on_once_there_is_room()
                machine.totals_are_what_is_held()
                machine.queues_keep_their_bounds()
                machine.nobody_waits_who_could_run()
                machine.nothing_is_remembered_for_ever()
            machine.teardown()
        except BaseException as fault:
            fault.add_note(f"history of seed {seed}")
            raise
