"""Buffers that are taken at once, handed out and returned, over the system's pages and over a fake device's."""

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import PoolExhausted
from headrace.executor.memory.driver import OutOfDeviceMemory
from headrace.executor.memory.pinned import AlignedMemory, HostMemory, LockedMemory, PinnedPool


class Driver:
    """Locks pages up to a bound, and knows what it has given."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.most_bytes = most_bytes
        self.given: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def host_alloc(self, size_bytes: int) -> int:
        if size_bytes > self.most_bytes:
            raise OutOfDeviceMemory
        memory = ctypes.create_string_buffer(b"\xff" * size_bytes, size_bytes)
        self.given[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def host_free(self, address: int) -> None:
        del self.given[address]


@pytest.mark.parametrize("memory", [AlignedMemory(), LockedMemory(Driver())])
def test_buffers_are_whole_zeroed_pages_and_apart(memory: HostMemory) -> None:
    with PinnedPool(memory, 3, 100) as pool, pool.buffer() as one, pool.buffer() as two:
        assert pool.num_free == 1
        arrays = [np.frombuffer(each, np.uint8) for each in (one, two)]
        assert all(len(array) == pool.buffer_bytes == mmap.PAGESIZE for array in arrays)
        assert not any(array.any() for array in arrays)
        arrays[0][:] = 7
        assert not arrays[1].any()
        assert not np.shares_memory(*arrays)


def test_the_systems_pages_are_aligned() -> None:
    with PinnedPool(AlignedMemory(), 2, 1) as pool, pool.buffer() as one, pool.buffer() as two:
        assert all(np.frombuffer(each, np.uint8).ctypes.data % mmap.PAGESIZE == 0 for each in (one, two))


def test_no_buffer_is_given_twice_and_each_comes_back() -> None:
    with PinnedPool(AlignedMemory(), 1, 10) as pool:
        with pool.buffer(), pytest.raises(PoolExhausted, match="in use"), pool.buffer():
            pass
        with pytest.raises(RuntimeError), pool.buffer():
            raise RuntimeError
        assert pool.num_free == 1


def test_locked_pages_go_back_once() -> None:
    driver = Driver()
    pool = PinnedPool(LockedMemory(driver), 2, 10)
    assert len(driver.given) == 1
    pool.close()
    pool.close()
    assert not driver.given
    with pytest.raises(ValueError, match="closed"), pool.buffer():
        pass


def test_no_more_pages_may_be_locked() -> None:
    with pytest.raises(PoolExhausted, match="2 pinned buffers"):
        PinnedPool(LockedMemory(Driver(most_bytes=mmap.PAGESIZE)), 2, 10)


@given(num_buffers=st.integers(-2, 0), buffer_bytes=st.integers(-2, 5))
def test_nonsense_is_refused(num_buffers: int, buffer_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        PinnedPool(AlignedMemory(), num_buffers, buffer_bytes)
