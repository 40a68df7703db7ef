"""Pools over page-locked memory: taken from the driver, or locked in place; returned once, refused in words."""

import mmap
from collections.abc import Callable

import numpy as np
import pytest

from headrace.core.errors import PoolExhausted
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.fake.values import Limits
from headrace.executor.cuda.memory import CudaPages
from headrace.executor.memory.driver import DriverFault
from headrace.executor.memory.pinned import HostMemory, LockedMemory, PinDriver, PinnedPool, RegisteredMemory

KINDS = pytest.mark.parametrize("kind", [LockedMemory, RegisteredMemory])
Kind = Callable[[PinDriver], HostMemory]


@KINDS
def test_buffers_are_zeroed_locked_and_returned(kind: Kind) -> None:
    fake = FakeCuda()
    with CudaDevice(fake) as device:
        with PinnedPool(kind(CudaPages(device)), 2, 100) as pool, pool.buffer() as one, pool.buffer() as two:
            arrays = [np.frombuffer(each, np.uint8) for each in (one, two)]
            assert all(fake.pages.locked(array.ctypes.data, array.nbytes) for array in arrays)
            assert not any(array.any() for array in arrays)
            del arrays
        assert fake.pages.used_bytes == 0
    assert fake.leaks() == []


@KINDS
def test_no_more_pages_may_be_locked(kind: Kind) -> None:
    fake = FakeCuda(Limits(pinned_bytes=mmap.PAGESIZE))
    with CudaDevice(fake) as device:
        with pytest.raises(PoolExhausted, match="2 pinned buffers"):
            PinnedPool(kind(CudaPages(device)), 2, 10)
        PinnedPool(kind(CudaPages(device)), 1, 10).close()
    assert fake.leaks() == []


def test_a_pool_that_is_not_closed_is_told() -> None:
    fake = FakeCuda()
    with CudaDevice(fake) as device:
        pool = PinnedPool(RegisteredMemory(CudaPages(device)), 1, 1)
        assert fake.leaks() == ["1 registered ranges", "1 contexts"]
        pool.close()
        with pytest.raises(DriverFault, match="INVALID_VALUE"):
            CudaPages(device).host_free(4096)
