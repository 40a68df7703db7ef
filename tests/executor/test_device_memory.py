"""The device arena over the fake driver, which refuses misuse and runs out when told to; blocks over many arenas."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import PoolExhausted
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.fake.values import Limits
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.kv.blocks import HOLD_S, BlockPool
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.memory.host_arena import HostArena
from headrace.executor.memory.layered import LayeredMemory, extent_blocks, runs

PAGE = 2 << 20


class Device:
    """A fake device with so many granules of memory."""

    def __init__(self, num_pages: int) -> None:
        self.fake = FakeCuda(Limits(memory_bytes=num_pages * PAGE))
        self.device = CudaDevice(self.fake)
        self.driver = CudaMemory(self.device)

    @property
    def accessible(self) -> set[int]:
        memory = self.fake.memory
        return {address for address in memory.mappings if memory.usable(address, PAGE, 0)}

    def check(self) -> None:
        memory = self.fake.memory
        assert self.accessible == memory.mappings.keys(), "memory that nobody may touch"
        assert not any(each.handle_open for each in memory.handles.values()), "a handle that nobody needs"
        assert all(each.num_mappings == 1 for each in memory.living())

    def close(self) -> None:
        self.device.close()
        assert self.fake.leaks() == []


def test_memory_comes_and_goes_and_addresses_stay() -> None:
    driver = Device(8)
    with CudaArena(driver.driver, 5 * PAGE - 1) as arena:
        assert arena.size_bytes == 5 * PAGE
        assert arena.resident_bytes() == 0
        arena.map_range(PAGE + 1, PAGE)
        assert driver.accessible == {arena.address + PAGE, arena.address + 2 * PAGE}
        arena.map_range(0, 3 * PAGE)
        assert arena.resident_bytes() == 3 * PAGE
        assert arena.release_range(1, 2 * PAGE) == PAGE
        assert arena.release_range(1, 2 * PAGE) == 0
        driver.check()
        for offset, length in ((-1, 2), (0, 5 * PAGE + 1), (0, -1)):
            with pytest.raises(ValueError, match="not within"):
                arena.map_range(offset, length)
    arena.close()
    driver.close()
    with pytest.raises(ValueError, match="closed"):
        arena.map_range(0, 1)


@pytest.mark.parametrize("calls", range(12))
def test_a_mapping_that_fails_at_any_call_leaves_nothing(calls: int) -> None:
    driver = Device(8)
    arena = CudaArena(driver.driver, 8 * PAGE)
    arena.map_range(0, PAGE)
    driver.fake.fails_after = calls
    with pytest.raises(PoolExhausted):
        arena.map_range(0, 5 * PAGE)
    driver.check()
    assert arena.resident_bytes() == PAGE
    driver.fake.fails_after = None
    arena.map_range(0, 5 * PAGE)
    driver.check()


def test_no_addresses_is_a_refusal() -> None:
    driver = Device(1)
    driver.fake.fails_after = 0
    with pytest.raises(PoolExhausted, match="address range"):
        CudaArena(driver.driver, PAGE)
    with pytest.raises(ValueError, match="0 bytes"):
        CudaArena(driver.driver, 0)


def test_extents_are_whole_pages_in_every_layer() -> None:
    assert extent_blocks([12_288], 4096) == 1
    assert extent_blocks([7_680, 6_912], 4096) == 16
    assert extent_blocks([12_288], PAGE) == 512
    assert runs(np.array([5, 1, 2, 9, 3], np.int32)) == [(1, 3), (5, 1), (9, 1)]
    assert runs(np.array([], np.int32)) == []
    with pytest.raises(ValueError, match="sizes"):
        LayeredMemory([], [])


def test_blocks_that_share_pages_go_together_on_the_host() -> None:
    arenas = [HostArena(32 * 7_680), HostArena(32 * 6_912)]
    memory = LayeredMemory(arenas, [7_680, 6_912])
    arrays = [arena.as_array(np.uint8, (32, size)) for arena, size in zip(arenas, (7_680, 6_912), strict=True)]
    for array in arrays:
        array[:] = 1
    memory.unmap_blocks(np.arange(16, 32, dtype=np.int32)[::-1])
    for array, arena in zip(arrays, arenas, strict=True):
        assert arena.resident_bytes() == array.nbytes // 2
        assert (array[:16] == 1).all()
        assert (array[16:] == 0).all()


class Pressure(RuleBasedStateMachine):
    """A pool over three arenas of a device with too little memory for all of it: a mapping that fails fails one taking
    and nothing else."""

    @initialize(num_pages=st.integers(3, 24), num_blocks=st.integers(1, 40))
    def begin(self, num_pages: int, num_blocks: int) -> None:
        self.device = Device(num_pages)
        sizes = [PAGE // 4, PAGE // 2, PAGE]
        self.arenas = [CudaArena(self.device.driver, num_blocks * size) for size in sizes]
        memory = LayeredMemory(self.arenas, sizes)
        assert memory.extent_blocks == 4
        self.pool = BlockPool(num_blocks, 8, extent_blocks=4, memory=memory, cache=PrefixCache(b""))
        self.promise = self.pool.reserve(num_blocks)
        self.held: list[int] = []
        self.now, self.count = 0.0, 0

    @precondition(lambda self: self.promise.num_left)
    @rule(fails_after=st.sampled_from([None, None, 0, 2, 7]))
    def take(self, fails_after: int | None) -> None:
        self.device.fake.fails_after = fails_after
        left = self.promise.num_left
        try:
            self.held.append(self.promise.take())
        except PoolExhausted:
            assert self.promise.num_left == left
            assert not self.pool.num_cached
        self.device.fake.fails_after = None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), published=st.booleans())
    def drop(self, data: st.DataObject, published: bool) -> None:
        block = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if published:
            self.count += 1
            self.pool.publish(block, str(self.count).encode())
        self.pool.drop(block)
        self.promise.release()
        self.promise = self.pool.reserve(self.pool.num_available)

    @rule(seconds=st.sampled_from([0.0, HOLD_S]), idle=st.booleans())
    def give_back(self, seconds: float, idle: bool) -> None:
        self.now += seconds
        if self.pool.give_back(self.now, idle=idle) is None and idle:
            extents = {block // 4 for block in self.held}
            assert len(self.arenas[2]._mapped) == sum(min(4, self.pool.num_blocks - 4 * each) for each in extents)

    @invariant()
    def books_agree(self) -> None:
        self.device.check()
        self.pool.check()
        accessible = self.device.accessible
        assert all(self.arenas[2].address + block * PAGE in accessible for block in self.held)
        state = self.pool.state()
        assert state.num_mapped * PAGE == self.arenas[2].resident_bytes()

    def teardown(self) -> None:
        for arena in getattr(self, "arenas", []):
            arena.close()
        if hasattr(self, "device"):
            self.device.close()


TestPressure = Pressure.TestCase
TestPressure.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_device_that_is_full_refuses_one_and_recovers() -> None:
    """Two pools over one device: what the one gives back, the other gets."""
    device = Device(6)
    arenas = [CudaArena(device.driver, 8 * PAGE) for _ in range(2)]
    pools = [BlockPool(8, 8, extent_blocks=1, memory=LayeredMemory([arena], [PAGE])) for arena in arenas]
    first, second = (pool.reserve(8) for pool in pools)
    held = [first.take() for _ in range(5)]
    kept = second.take()
    with pytest.raises(PoolExhausted, match="no memory"):
        second.take()
    for pool in pools:
        pool.check()
    for block in held:
        pools[0].drop(block)
    assert pools[0].give_back(0.0) is not None
    assert pools[0].give_back(2 * HOLD_S) is None or pools[0].give_back(3 * HOLD_S) is None
    more = [second.take() for _ in range(5)]
    assert second.num_left == 2
    for block in (kept, *more):
        pools[1].drop(block)
    for arena in arenas:
        arena.close()
    device.close()
