"""The host arena: reserved is not resident, released pages leave, what is beside them stays."""

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.executor.memory.arena import VirtualArena, whole_pages
from headrace.executor.memory.host_arena import HostArena

PAGE = mmap.PAGESIZE


def test_pages_come_with_writing_and_go_with_release() -> None:
    arena: VirtualArena = HostArena(4 << 30)
    array = arena.as_array(np.uint16, (1024, PAGE // 2))
    assert arena.resident_bytes() == 0
    array[:16] = 7
    assert arena.resident_bytes() == 16 * PAGE
    assert arena.release_range(4 * PAGE, 8 * PAGE) == 8 * PAGE
    assert arena.resident_bytes() == 8 * PAGE
    assert (array[:4] == 7).all()
    assert (array[4:12] == 0).all()
    assert (array[12:16] == 7).all()
    arena.close()


def test_release_keeps_pages_that_lie_only_partly_within() -> None:
    arena = HostArena(4 * PAGE)
    array = arena.as_array(np.uint8, (4 * PAGE,))
    array[:] = 3
    assert arena.release_range(PAGE // 2, 2 * PAGE) == PAGE
    assert (array[:PAGE] == 3).all()
    assert (array[PAGE : 2 * PAGE] == 0).all()
    assert (array[2 * PAGE :] == 3).all()
    assert arena.release_range(10, 20) == 0


def test_close_returns_memory_though_arrays_live_and_twice_is_harmless() -> None:
    arena = HostArena(8 * PAGE)
    array = arena.as_array(np.int64, (PAGE // 8, 8))
    array[:] = 5
    arena.close()
    arena.close()
    assert (array == 0).all()
    with pytest.raises(ValueError, match="closed"):
        arena.as_array(np.uint8, (1,))


def test_what_does_not_fit_is_refused() -> None:
    arena = HostArena(PAGE)
    with pytest.raises(ValueError, match="does not fit"):
        arena.as_array(np.int64, (PAGE // 8 + 1,))
    for offset, length in ((-1, 2), (0, PAGE + 1), (PAGE, 1), (0, -1)):
        with pytest.raises(ValueError, match="not within"):
            arena.release_range(offset, length)
    with pytest.raises(ValueError, match="0 bytes"):
        HostArena(0)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 16))
def test_whole_pages_are_those_wholly_within(offset: int, length: int, page: int) -> None:
    first, inner = whole_pages(offset, length, page)
    inside = [start for start in range(0, 300, page) if offset <= start and start + page <= offset + length]
    assert inner == page * len(inside)
    assert not inside or first == inside[0]
