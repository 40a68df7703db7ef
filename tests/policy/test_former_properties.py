"""Padded batches, whatever happens in whichever order: what a batch may be, and what nobody may wait for."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import CloseReason, Command, Dispatch, Drop, Refuse
from headrace.scheduler.policy.events import (
    Configured,
    Event,
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    Gathered,
    LoadedModel,
    Padding,
    Request,
    Submitted,
    Tick,
    Withdrawn,
)
from headrace.scheduler.policy.flights import free_at
from headrace.scheduler.policy.limits import Bounds, BucketRule, Limits, changed
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State

CONTEXT = 512
ROWS = 4
ALIGN = 64
BATCH_TOKENS = 1000
MODELS = ("m", "other")
WINDOW_S = 0.03


class FormerMachine(RuleBasedStateMachine):
    """`waiting` and `on` follow each submission by its serial; at the end all that waits is served."""

    packs = False

    def __init__(self) -> None:
        super().__init__()
        limits = Limits(Bounds(1000, 10**6), lease_s=1e6, batch_tokens=BATCH_TOKENS, start_timeout_s=1e6)
        self.state = State(changed(limits, {"window_ms": str(WINDOW_S * 1000)}))
        self.now = 0.0
        self.serial = 0
        self.requests: dict[int, Request] = {}
        self.waiting: set[int] = set()
        self.ever: Counter[int] = Counter()
        self.on: dict[str, list[tuple[int, ...]]] = {}  # batches by executor, in order
        self.models: dict[str, tuple[str, ...]] = {}
        self.room_since: dict[int, float] = {}

    def happen(self, event: Event) -> list[Command]:
        commands = step(self.state, event, self.now)
        for command in commands:
            match command:
                case Dispatch():
                    self._dispatched(command)
                case Refuse(request, _) | Drop(request):
                    self.waiting.remove(request.serial)
                    self.ever[request.serial] += 1
        return commands

    def _dispatched(self, dispatch: Dispatch) -> None:
        members = [member.request for member in dispatch.members]
        assert len({request.model for request in members}) == 1
        assert members[0].model in self.models[dispatch.executor_id]
        assert dispatch.num_rows <= dispatch.batch_rows == ROWS
        assert dispatch.padded_tokens <= CONTEXT
        assert dispatch.num_rows == 1 or dispatch.num_rows * dispatch.padded_tokens <= BATCH_TOKENS
        if self.packs:
            self._check_rows(dispatch)
        else:
            assert not dispatch.rows
            assert (dispatch.close_reason is CloseReason.FULL) == (len(members) == ROWS)
        rows = dispatch.rows or [(place,) for place in range(len(members))]
        assert all(sum(members[place].prompt_tokens for place in row) <= dispatch.padded_tokens for row in rows)
        if self.state.limits.buckets is BucketRule.ADAPTIVE and not self.packs:
            lengths = self.state.lengths[members[0].model, Precision.ANY]
            assert len({lengths.bucket_of(request.prompt_tokens) for request in members}) == 1
        batches = self.on[dispatch.executor_id]
        assert len(batches) < 2
        idle = dispatch.close_reason in (CloseReason.IDLE, CloseReason.BUCKET)
        assert not (idle and batches)
        batches.append(tuple(request.serial for request in members))
        for request in members:
            self.waiting.remove(request.serial)
            self.ever[request.serial] += 1

    def _check_rows(self, dispatch: Dispatch) -> None:
        """Each member is in one row, and together they compute no more than one a row would, where that could be."""
        lengths = [max(1, member.request.prompt_tokens) for member in dispatch.members]
        assert sorted(place for row in dispatch.rows for place in row) == list(range(len(lengths)))
        if len(lengths) <= ROWS:
            alone = len(lengths) * min(CONTEXT, -(-max(lengths) // ALIGN) * ALIGN)
            assert dispatch.num_rows * dispatch.padded_tokens <= alone

    def _submitted(self, length: int, qos: QosClass, tenant: str, model: str, deadline_s: float | None) -> Submitted:
        self.serial += 1
        request = Request(self.serial, f"r{self.serial}", "g", model, length, 0, qos, tenant, deadline_s=deadline_s)
        self.requests[self.serial] = request
        self.waiting.add(self.serial)
        return Submitted(request)

    @initialize(rule=st.sampled_from(BucketRule))
    def begin(self, rule: BucketRule) -> None:
        self.happen(Configured(changed(self.state.limits, {"buckets": rule})))
        self._enlist("e1", MODELS, 8)

    def _enlist(self, executor_id: str, models: tuple[str, ...], slots: int) -> None:
        loaded = tuple(LoadedModel(name, Precision.FP32, CONTEXT, Padding(ROWS, ALIGN, self.packs)) for name in models)
        self.on[executor_id], self.models[executor_id] = [], models
        self.happen(ExecutorEnlisted(executor_id, f"{executor_id}:1", loaded, slots, slots, CONTEXT))

    @rule(
        arrivals=st.lists(
            st.tuples(
                st.integers(0, 40) | st.integers(0, CONTEXT),
                st.sampled_from(QosClass),
                st.sampled_from(["", "t1", "t2"]),
                st.sampled_from(["m", "m", "other"]),
                st.none() | st.floats(0.01, 0.5),
            ),
            min_size=1,
            max_size=9,
        )
    )
    def submit(self, arrivals: list[tuple[int, QosClass, str, str, float | None]]) -> None:
        events = tuple(self._submitted(*each) for each in arrivals)
        self.happen(Gathered(events) if len(events) > 1 else events[0])

    @rule(gap_s=st.floats(0.0005, 0.05))
    def pass_time(self, gap_s: float) -> None:
        """As the service does: it wakes up when something is due."""
        until = self.now + gap_s
        for _ in range(1000):
            due = self.state.next_due()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.happen(Tick())
        self.now = until

    @precondition(lambda self: any(self.on.values()))
    @rule(data=st.data())
    def end_batch(self, data: st.DataObject) -> None:
        executor_id = data.draw(st.sampled_from([each for each, batches in self.on.items() if batches]))
        serials = self.on[executor_id].pop(0)
        ids = tuple(f"r{serial}" for serial in serials)
        samples = (StepSample(0, 64 * len(ids), data.draw(st.floats(0.001, 0.1))),)
        self.happen(ExecutorReported(executor_id, started_ids=ids, finished_ids=ids, steps=samples))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.happen(Withdrawn("g", f"r{data.draw(st.sampled_from(sorted(self.waiting)))}"))

    @rule(number=st.integers(2, 3), models=st.sampled_from([MODELS, ("m",)]), slots=st.sampled_from([3, 8]))
    def enlist(self, number: int, models: tuple[str, ...], slots: int) -> None:
        if f"e{number}" not in self.on:
            self._enlist(f"e{number}", models, slots)

    @precondition(lambda self: len(self.on) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        executor_id = data.draw(st.sampled_from(sorted(self.on.keys() - {"e1"})))
        del self.on[executor_id]
        self.happen(ExecutorLost(executor_id))

    @rule(rule_=st.sampled_from(BucketRule), window_ms=st.sampled_from([0, 30]))
    def configure(self, rule_: BucketRule, window_ms: int) -> None:
        self.happen(Configured(changed(self.state.limits, {"buckets": rule_, "window_ms": str(window_ms)})))

    @invariant()
    def everybody_is_in_one_place(self) -> None:
        assert {waiting.request.serial for waiting in self.state.queues.by_id.values()} == self.waiting
        assert all(count == 1 for count in self.ever.values())
        assert self.ever.keys() | self.waiting == self.requests.keys()

    @invariant()
    def nobody_waits_while_a_device_idles(self) -> None:
        for executor_id, batches in self.on.items():
            if not batches:
                served = self.models[executor_id]
                assert not [serial for serial in self.waiting if self.requests[serial].model in served], executor_id

    @invariant()
    def no_batch_is_open_longer_than_devices_are_busy_and_the_window(self) -> None:
        busy_until = max((free_at(each, self.now) for each in self.state.registry.executors.values()), default=0.0)
        for lane in self.state.queues.lanes():
            for bucket in (lane.by_bucket or {}).values():
                if bucket.held_since is not None and self.state.windows.next_due() is not None:
                    assert self.now <= max(busy_until, bucket.held_since + WINDOW_S) + 1e-9

    def teardown(self) -> None:
        """What runs ends, one batch after the other: then nobody may be left."""
        for _ in range(10_000):
            executor_id = next((each for each, batches in self.on.items() if batches), None)
            if executor_id is None:
                break
            ids = tuple(f"r{serial}" for serial in self.on[executor_id].pop(0))
            self.happen(ExecutorReported(executor_id, finished_ids=ids))
        assert not self.waiting
        assert not self.state.active


class PackingMachine(FormerMachine):
    """The same where members may share a row."""

    packs = True


TestFormer = FormerMachine.TestCase
TestFormer.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPacking = PackingMachine.TestCase
TestPacking.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
