"""The device arena over a driver that refuses every misuse and runs out when it is told to; blocks over many arenas."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import PoolExhausted
from headrace.executor.kv.blocks import HOLD_S, BlockPool
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.memory.driver import OutOfDeviceMemory
from headrace.executor.memory.host_arena import HostArena
from headrace.executor.memory.layered import LayeredMemory, extent_blocks, runs

PAGE = 2 << 20


class Driver:
    """A device with so many granules of memory. `calls_left` calls may still succeed; None: all of them."""

    def __init__(self, num_pages: int) -> None:
        self.granularity_bytes = PAGE
        self.num_pages = num_pages
        self.calls_left: int | None = None
        self.ranges: dict[int, int] = {}
        self.handles: dict[int, int] = {}  # how many hold the memory: its handle, and each mapping
        self.mapped: dict[int, int] = {}  # address to handle
        self.accessible: set[int] = set()
        self._next = 1

    def _call(self) -> None:
        if self.calls_left is not None:
            if not self.calls_left:
                raise OutOfDeviceMemory
            self.calls_left -= 1

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _inside(self, address: int, size: int) -> None:
        assert any(first <= address and address + size <= first + length for first, length in self.ranges.items())
        assert address % PAGE == 0
        assert size == PAGE

    def reserve(self, size_bytes: int) -> int:
        self._call()
        assert size_bytes > 0
        assert size_bytes % PAGE == 0
        address = self._number() << 40
        self.ranges[address] = size_bytes
        return address

    def free(self, address: int, size_bytes: int) -> None:
        assert self.ranges.pop(address) == size_bytes
        assert not [each for each in self.mapped if address <= each < address + size_bytes], "it is mapped"

    def create(self, size_bytes: int) -> int:
        self._call()
        assert size_bytes == PAGE
        if len(self.handles) >= self.num_pages:
            raise OutOfDeviceMemory
        handle = self._number()
        self.handles[handle] = 1
        return handle

    def release(self, handle: int) -> None:
        self.handles[handle] -= 1
        if not self.handles[handle]:
            del self.handles[handle]

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        self._call()
        self._inside(address, size_bytes)
        assert address not in self.mapped
        self.handles[handle] += 1
        self.mapped[address] = handle

    def set_access(self, address: int, size_bytes: int) -> None:
        self._call()
        self._inside(address, size_bytes)
        assert address in self.mapped
        self.accessible.add(address)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._inside(address, size_bytes)
        self.accessible.discard(address)
        self.release(self.mapped.pop(address))

    def check(self) -> None:
        assert self.accessible == self.mapped.keys(), "memory that nobody may touch"
        assert sorted(self.handles) == sorted(self.mapped.values()), "memory behind no address"
        assert all(count == 1 for count in self.handles.values())


def test_memory_comes_and_goes_and_addresses_stay() -> None:
    driver = Driver(8)
    with CudaArena(driver, 5 * PAGE - 1) as arena:
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
    assert not driver.ranges
    assert not driver.handles
    with pytest.raises(ValueError, match="closed"):
        arena.map_range(0, 1)


@pytest.mark.parametrize("calls", range(12))
def test_a_mapping_that_fails_at_any_call_leaves_nothing(calls: int) -> None:
    driver = Driver(8)
    arena = CudaArena(driver, 8 * PAGE)
    arena.map_range(0, PAGE)
    driver.calls_left = calls
    with pytest.raises(PoolExhausted):
        arena.map_range(0, 5 * PAGE)
    driver.check()
    assert arena.resident_bytes() == PAGE
    driver.calls_left = None
    arena.map_range(0, 5 * PAGE)
    driver.check()


def test_no_addresses_is_a_refusal() -> None:
    driver = Driver(1)
    driver.calls_left = 0
    with pytest.raises(PoolExhausted, match="address range"):
        CudaArena(driver, PAGE)
    with pytest.raises(ValueError, match="0 bytes"):
        CudaArena(driver, 0)


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


class Device(RuleBasedStateMachine):
    """A pool over three arenas of a device with too little memory for all of it: a mapping that fails fails one taking
    and nothing else."""

    @initialize(num_pages=st.integers(3, 24), num_blocks=st.integers(1, 40))
    def begin(self, num_pages: int, num_blocks: int) -> None:
        self.driver = Driver(num_pages)
        sizes = [PAGE // 4, PAGE // 2, PAGE]
        self.arenas = [CudaArena(self.driver, num_blocks * size) for size in sizes]
        memory = LayeredMemory(self.arenas, sizes)
        assert memory.extent_blocks == 4
        self.pool = BlockPool(num_blocks, 8, extent_blocks=4, memory=memory, cache=PrefixCache(b""))
        self.promise = self.pool.reserve(num_blocks)
        self.held: list[int] = []
        self.now, self.count = 0.0, 0

    @precondition(lambda self: self.promise.num_left)
    @rule(fails_after=st.sampled_from([None, None, 0, 2, 7]))
    def take(self, fails_after: int | None) -> None:
        self.driver.calls_left = fails_after
        left = self.promise.num_left
        try:
            self.held.append(self.promise.take())
        except PoolExhausted:
            assert self.promise.num_left == left
            assert not self.pool.num_cached
        self.driver.calls_left = None

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
        self.driver.check()
        self.pool.check()
        assert all(self.arenas[2].address + block * PAGE in self.driver.accessible for block in self.held)
        state = self.pool.state()
        assert state.num_mapped * PAGE == self.arenas[2].resident_bytes()

    def teardown(self) -> None:
        for arena in getattr(self, "arenas", []):
            arena.close()
        if hasattr(self, "driver"):
            assert not self.driver.handles
            assert not self.driver.ranges


TestDevice = Device.TestCase
TestDevice.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
