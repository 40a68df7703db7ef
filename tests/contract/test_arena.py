"""One contract for arenas on the host and on a device: what is mapped can be written and keeps what was written, what
is released reads as zero, whole pages go and nothing beside them."""

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core.errors import PoolExhausted
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.fake.values import Limits
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.cuda.streams import Stream
from headrace.executor.memory.arena import VirtualArena, whole_pages
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.memory.host_arena import HostArena

PAGE = 4096
"""Of the host, and the granule of the fake device here: so the same histories run on both."""


class Host:
    """An arena of the host, and its bytes."""

    def __init__(self, num_pages: int) -> None:
        self.arena: VirtualArena = HostArena(num_pages * PAGE)
        self._bytes = self.arena.as_array(np.uint8, (num_pages * PAGE,))  # type: ignore[attr-defined]

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length].tobytes()

    def close(self) -> None:
        self.arena.close()


class Device:
    """An arena of a fake device, written and read by its copies."""

    def __init__(self, num_pages: int, memory_pages: int | None = None) -> None:
        most = num_pages if memory_pages is None else memory_pages
        self.fake = FakeCuda(Limits(memory_bytes=most * PAGE, granule_bytes=PAGE))
        self.device = CudaDevice(self.fake)
        self._stream = Stream(self.device)
        self.arena: VirtualArena = CudaArena(CudaMemory(self.device), num_pages * PAGE)

    def write(self, offset: int, data: bytes) -> None:
        buffer = ctypes.create_string_buffer(data, len(data))
        self._stream.to_device(self.arena.address + offset, ctypes.addressof(buffer), len(data))  # type: ignore[attr-defined]
        self._stream.synchronise()

    def read(self, offset: int, length: int) -> bytes:
        """What is not mapped reads as zero: there is nothing."""
        data = bytearray(length)
        address: int = self.arena.address  # type: ignore[attr-defined]
        for place in range(offset, offset + length):
            if self.fake.memory.usable(address + place, 1, 0):
                data[place - offset] = self.fake.memory.read(address + place, 1)[0]
        return bytes(data)

    def close(self) -> None:
        self.arena.close()
        self._stream.close()
        self.device.close()
        assert self.fake.leaks() == []


Both = Callable[[int], Host | Device]


@pytest.fixture(params=[Host, Device])
def new(request: pytest.FixtureRequest) -> Iterator[Both]:
    made: list[Host | Device] = []

    def make(num_pages: int) -> Host | Device:
        made.append(request.param(num_pages))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_nothing_is_resident_until_it_is_used(new: Both) -> None:
    memory = new(64)
    assert memory.arena.resident_bytes() == 0
    assert memory.arena.size_bytes == 64 * PAGE
    memory.arena.map_range(3 * PAGE, 2 * PAGE)
    memory.write(3 * PAGE, b"\1" * 2 * PAGE)
    assert memory.arena.resident_bytes() == 2 * PAGE


def test_what_is_released_is_lost_and_what_lies_beside_stays(new: Both) -> None:
    memory = new(8)
    memory.arena.map_range(0, 4 * PAGE)
    memory.write(0, b"\3" * 4 * PAGE)
    assert memory.arena.release_range(PAGE // 2, 2 * PAGE) == PAGE
    assert memory.arena.resident_bytes() == 3 * PAGE
    memory.arena.map_range(PAGE, PAGE)
    assert memory.read(PAGE - 1, 2) == b"\3\0"
    assert memory.read(2 * PAGE - 1, 2) == b"\0\3"


def test_mapping_twice_keeps_what_is_there(new: Both) -> None:
    memory = new(4)
    memory.arena.map_range(0, PAGE)
    memory.write(0, b"kept")
    memory.arena.map_range(0, 3 * PAGE)
    assert memory.read(0, 4) == b"kept"


def test_ranges_beyond_the_arena_are_refused(new: Both) -> None:
    memory = new(2)
    for offset, length in ((-1, 2), (0, 2 * PAGE + 1), (2 * PAGE, 1), (0, -1)):
        with pytest.raises(ValueError, match="not within"):
            memory.arena.map_range(offset, length)
        with pytest.raises(ValueError, match="not within"):
            memory.arena.release_range(offset, length)


def test_closing_twice_is_harmless_and_ends_use(new: Both) -> None:
    memory = new(2)
    memory.arena.map_range(0, PAGE)
    memory.arena.close()
    memory.arena.close()
    with pytest.raises(ValueError, match="closed"):
        memory.arena.release_range(0, PAGE)


class Histories(RuleBasedStateMachine):
    """Random mapping, writing and releasing on both arenas at once: they hold the same bytes in the same pages. The
    device has less memory than addresses; what it refuses is not written on the host either."""

    num_pages = 12

    @initialize(memory_pages=st.integers(3, 12))
    def begin(self, memory_pages: int) -> None:
        self.host, self.gpu = Host(self.num_pages), Device(self.num_pages, memory_pages)
        self.memory_pages = memory_pages
        self.expected = bytearray(self.num_pages * PAGE)
        self.mapped: set[int] = set()

    @rule(
        first=st.integers(0, 11), count=st.integers(1, 5), inset=st.sampled_from([0, 1, PAGE // 2]), value=st.binary()
    )
    def use(self, first: int, count: int, inset: int, value: bytes) -> None:
        offset = first * PAGE + inset
        length = min(count * PAGE - inset, self.num_pages * PAGE - offset)
        pages = set(range(first, -(-(offset + length) // PAGE)))
        fits = len(self.mapped | pages) <= self.memory_pages
        try:
            self.gpu.arena.map_range(offset, length)
        except PoolExhausted:
            assert not fits
            return
        assert fits
        self.host.arena.map_range(offset, length)
        self.mapped |= pages
        data = (value + b"\1")[:length]
        for page in pages:
            for memory in (self.host, self.gpu):
                memory.write(page * PAGE, data)
            self.expected[page * PAGE : page * PAGE + len(data)] = data

    @rule(offset=st.integers(0, 12 * PAGE), length=st.integers(0, 6 * PAGE))
    def release(self, offset: int, length: int) -> None:
        length = min(length, self.num_pages * PAGE - offset)
        first, inner = whole_pages(offset, length, PAGE)
        gone = set(range(first // PAGE, (first + inner) // PAGE)) & self.mapped
        assert self.gpu.arena.release_range(offset, length) == len(gone) * PAGE
        assert self.host.arena.release_range(offset, length) == inner
        self.mapped -= gone
        self.expected[first : first + inner] = bytes(inner)

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "host"):
            return
        assert self.host.arena.resident_bytes() == self.gpu.arena.resident_bytes() == len(self.mapped) * PAGE
        for page in self.mapped:  # reading another page of the host makes it resident
            begin = page * PAGE
            assert self.host.read(begin, PAGE) == self.expected[begin : begin + PAGE]
            address: int = self.gpu.arena.address  # type: ignore[attr-defined]
            assert self.gpu.fake.memory.read(address + begin, PAGE) == self.expected[begin : begin + PAGE]

    def teardown(self) -> None:
        for memory in (getattr(self, "host", None), getattr(self, "gpu", None)):
            if memory is not None:
                memory.close()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
