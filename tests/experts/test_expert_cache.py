"""Whatever layers ask for comes, once, with its own weights, and keeps its place while it is used."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DeviceFault, EngineNotReady
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.memory import CudaMemory, CudaPages
from headrace.executor.cuda.streams import Stream
from headrace.executor.event_wait import EventWait, OverdueWait
from headrace.executor.experts.cache import MOST_AHEAD, ExpertCache
from headrace.executor.experts.copies import HostCopies
from headrace.executor.experts.counts import ExpertCounts
from headrace.executor.experts.cuda_copies import CudaCopies
from headrace.executor.experts.routing import NO_TOPIC
from headrace.executor.experts.store import ExpertLayout, ExpertMemory
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.memory.driver import OutOfDeviceMemory
from headrace.executor.memory.pinned import AlignedMemory, LockedMemory

LAYERS, EXPERTS = 3, 6
LAYOUT = ExpertLayout(LAYERS, EXPERTS, {"up": (3, 5), "down": (5, 3)}, 4)

TOKENS = st.lists(st.lists(st.integers(0, EXPERTS - 1), min_size=2, max_size=2, unique=True), min_size=1, max_size=5)
STEPS = st.lists(st.tuples(TOKENS, st.integers(0, 2)), min_size=1, max_size=6)


def filled(memory: ExpertMemory) -> None:
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            for number, name in enumerate(LAYOUT.shapes):
                part = memory.part(layer, expert, name)
                part[:] = bytes([layer * 64 + expert * 8 + number]) * len(part)


class LateLoad:
    """A copy that is made when `copies` lets it be, or when somebody waits for it."""

    def __init__(self, copies: "LateCopies", place: tuple[int, int], expert: int) -> None:
        self.copies, self.place, self.expert = copies, place, expert

    def done(self) -> bool:
        return self not in self.copies.under_way

    def hurry(self) -> None:
        pass

    def wait(self) -> None:
        self.copies.finish(self)


class LateCopies:
    """Copies that come in any order, and refuse a place that is read or already being written."""

    def __init__(self) -> None:
        self.there: dict[tuple[int, int], int] = {}
        self.under_way: list[LateLoad] = []
        self.read: tuple[int, int] | None = None

    def start(self, layer: int, expert: int, slot: int, *, urgent: bool) -> LateLoad:
        place = (layer, slot)
        assert place != self.read
        assert all(load.place != place for load in self.under_way)
        assert urgent or len(self.under_way) < MOST_AHEAD
        self.there.pop(place, None)
        load = LateLoad(self, place, expert)
        self.under_way.append(load)
        return load

    def finish(self, load: LateLoad) -> None:
        if load in self.under_way:
            self.under_way.remove(load)
            self.there[load.place] = load.expert

    def used(self, layer: int, slot: int) -> None:
        assert self.read == (layer, slot)
        self.read = None

    def close(self) -> None:
        pass


@given(st.integers(1, EXPERTS), st.booleans(), STEPS, st.randoms())
def test_any_routing_is_served(num_slots: int, ahead: bool, steps: list, random) -> None:  # type: ignore[no-untyped-def, type-arg]
    copies = LateCopies()
    cache = ExpertCache(LAYERS, EXPERTS, num_slots, 100, copies, ahead=ahead)
    vectors = np.eye(3, dtype=np.float32)
    num_asked = 0
    for tokens, topic in steps:
        known = cache.admit(vectors[topic], 2)
        for layer in range(LAYERS):
            asked = {(expert + layer) % EXPERTS for token in tokens for expert in token}
            routing = (np.array(tokens) + layer) % EXPERTS
            came = []
            for expert, slot in cache.in_turn(layer, routing, np.full(len(tokens), known, np.int32)):
                copies.read = (layer, slot)
                assert copies.there[layer, slot] == expert
                came.append(expert)
                for load in list(copies.under_way):
                    if random.random() < 0.3:
                        copies.finish(load)
            assert sorted(came) == sorted(asked), "each once"
            num_asked += len(asked)
            assert len(cache.resident(layer)) <= num_slots
    counts = cache.counts
    assert counts.num_hits + counts.num_early + counts.num_misses == num_asked
    assert counts.demand_bytes == 100 * counts.num_misses
    assert ahead or counts.ahead_bytes == counts.num_early == counts.num_wasted == 0
    cache.settle()
    assert copies.under_way == []
    if num_slots == EXPERTS:
        assert counts.num_misses <= LAYERS * EXPERTS, "nothing has to go"


def test_hits_come_first_and_large_steps_do_not_thrash() -> None:
    """A step that asks for all of six experts over three places finds three of them there, each time."""
    copies = LateCopies()
    cache = ExpertCache(1, EXPERTS, 3, 100, copies, ahead=False)
    everybody = np.arange(EXPERTS)[:, None]
    for step in range(4):
        before, there = cache.counts, set(cache.resident(0))
        came = []
        for expert, slot in cache.in_turn(0, everybody):
            copies.read = (0, slot)
            came.append(expert)
        assert set(came[: len(there)]) == there
        assert cache.counts.since(before).num_hits == (3 if step else 0)


def test_a_step_that_ends_early_leaves_nothing_locked() -> None:
    copies = LateCopies()
    cache = ExpertCache(1, EXPERTS, 2, 100, copies, ahead=False)
    turn = cache.in_turn(0, np.array([[0], [1], [2]]))
    _, slot = next(turn)
    copies.read = (0, slot)
    turn.close()
    for expert, slot in cache.in_turn(0, np.array([[3], [4], [5]])):
        copies.read = (0, slot)
        assert copies.there[0, slot] == expert


def test_what_a_topic_asks_for_comes_at_admission() -> None:
    copies = LateCopies()
    cache = ExpertCache(2, EXPERTS, 2, 100, copies)
    vectors = np.eye(2, dtype=np.float32)
    routings = [np.array([[0, 1]] * 3), np.array([[4, 5]] * 3)]
    for _ in range(10):
        for vector, routing in zip(vectors, routings, strict=True):
            topic = cache.admit(vector, 2)
            for layer in range(2):
                for _, slot in cache.in_turn(layer, routing, np.full(3, topic, np.int32)):
                    copies.read = (layer, slot)
            cache.settle()
    before = cache.counts
    assert cache.admit(vectors[0], 2) == 0
    assert {load.expert for load in copies.under_way} == {0, 1}
    cache.settle()
    for _, slot in cache.in_turn(0, routings[0], np.zeros(3, np.int32)):
        copies.read = (0, slot)
    assert cache.counts.since(before).num_misses == 0
    assert cache.counts.since(before).num_early == 2
    assert cache.admit(None, 2) == NO_TOPIC


@contextmanager
def on_the_host(num_slots: int, link_bytes_per_s: float | None = None) -> Iterator[tuple[ExpertCache, ExpertMemory]]:
    memory = AlignedMemory()
    with ExpertMemory(memory, LAYOUT, EXPERTS) as source, ExpertMemory(memory, LAYOUT, num_slots) as places:
        filled(source)
        copies = HostCopies(source, places, link_bytes_per_s)
        try:
            yield ExpertCache(LAYERS, EXPERTS, num_slots, LAYOUT.expert_bytes, copies), places
        finally:
            copies.close()


@given(st.integers(1, EXPERTS), STEPS)
@settings(max_examples=25)
def test_weights_on_the_host_are_the_experts_own(num_slots: int, steps: list) -> None:  # type: ignore[type-arg]
    with on_the_host(num_slots) as (cache, places):
        for tokens, _ in steps:
            for layer in range(LAYERS):
                for expert, slot in cache.in_turn(layer, np.array(tokens)):
                    for number, name in enumerate(LAYOUT.shapes):
                        assert set(places.part(layer, slot, name)) == {layer * 64 + expert * 8 + number}


def test_waits_are_counted() -> None:
    with on_the_host(2, link_bytes_per_s=LAYOUT.expert_bytes / 0.02) as (cache, _):
        list(cache.in_turn(0, np.array([[0]])))
        assert cache.counts == ExpertCounts(
            num_misses=1, stall_s=cache.counts.stall_s, demand_bytes=LAYOUT.expert_bytes
        )
        assert cache.counts.stall_s > 0
        assert cache.counts.hit_rate == 0
        list(cache.in_turn(0, np.array([[0]])))
        assert cache.counts.hit_rate == 0.5


def test_a_machine_without_the_memory_says_so() -> None:
    class Full(AlignedMemory):
        def allocate(self, size_bytes: int) -> memoryview:
            raise OutOfDeviceMemory

    with pytest.raises(EngineNotReady, match=r"no memory for 6 experts of 128 bytes in each of 3 layers"):
        ExpertMemory(Full(), LAYOUT, EXPERTS)


class OnTheDevice:
    """The same over a fake CUDA device, whose work reads an expert's place when it is given and ends later."""

    def __init__(self, num_slots: int) -> None:
        self.fake = FakeCuda()
        self.device = CudaDevice(self.fake)
        self.told: list[OverdueWait] = []
        self.memory = LockedMemory(CudaPages(self.device))
        self.source = ExpertMemory(self.memory, LAYOUT, EXPERTS)
        filled(self.source)
        size = LAYOUT.expert_bytes
        self.arena = CudaArena(CudaMemory(self.device), LAYERS * num_slots * size + size)
        self.arena.map_range(0, LAYERS * num_slots * size + size)
        self.compute = Stream(self.device)
        waits = EventWait(self.told.append, now=self.fake.now, sleep=self.fake.advance)
        self.copies = CudaCopies(self.device, self.source, self.arena.address, num_slots, self.compute, waits)
        self.cache = ExpertCache(LAYERS, EXPERTS, num_slots, size, self.copies)
        self.num_slots = num_slots
        self.seen: list[bytes] = []

    def use(self, layer: int, slot: int, seconds: float) -> None:
        """Work that reads the expert's place when it begins, which may be long after it was given."""
        size, last = LAYOUT.expert_bytes, LAYERS * self.num_slots
        address = self.arena.address + (layer * self.num_slots + slot) * size

        def kernel(data: bytes) -> bytes:
            self.seen.append(data)
            return data

        number = self.compute.number
        self.device.call(self.fake.launch, number, seconds, (address, size), self.arena.address + last * size, kernel)

    def close(self) -> None:
        for each in (self.copies, self.compute, self.arena, self.source, self.device):
            each.close()
        assert self.fake.leaks() == []


@given(st.integers(1, EXPERTS), STEPS, st.floats(1e-6, 1e-3))
@settings(max_examples=25, deadline=None)
def test_a_device_reads_the_experts_own_weights(num_slots: int, steps: list, seconds: float) -> None:  # type: ignore[type-arg]
    on = OnTheDevice(num_slots)
    expected = []
    for tokens, _ in steps:
        for layer in range(LAYERS):
            for expert, slot in on.cache.in_turn(layer, np.array(tokens)):
                expected.append(ctypes.string_at(on.source.address(layer, expert), LAYOUT.expert_bytes))
                on.use(layer, slot, seconds)
    on.compute.synchronise()
    on.cache.settle()
    assert on.seen == expected
    assert on.fake.broken is None
    on.close()


def test_an_expert_that_never_comes_is_a_device_fault() -> None:
    on = OnTheDevice(2)
    on.fake.stall(on.copies._stream.number)
    with pytest.raises(DeviceFault, match="an expert's copy to the device"):
        next(on.cache.in_turn(0, np.array([[0]])))
    assert [wait.lateness.value for wait in on.told] == ["late", "fault"]
