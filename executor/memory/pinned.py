"""Host memory that a device reads without a copy in between: page-locked where there is a device, page-aligned anyway.

All of it is taken at once, since locking pages is slow, and handed out as buffers of one size.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from headrace.core.errors import PoolExhausted
from headrace.executor.memory.driver import OutOfDeviceMemory


class HostMemory(Protocol):
    """Where a pool's memory comes from."""

    def allocate(self, size_bytes: int) -> memoryview:
        """Zeroed, writable, page-aligned. Raises OutOfDeviceMemory."""

    def free(self, memory: memoryview) -> None:
        """Nobody reads or writes it any more."""


class PinDriver(Protocol):
    """The calls of a device's driver that page-locked memory is made of."""

    def host_alloc(self, size_bytes: int) -> int:
        """An address (cuMemHostAlloc). Raises OutOfDeviceMemory where no more pages may be locked."""

    def host_free(self, address: int) -> None:
        """Gives a whole allocation back (cuMemFreeHost)."""

    def host_register(self, address: int, size_bytes: int) -> None:
        """Locks pages that are there already (cuMemHostRegister). Raises OutOfDeviceMemory, and DriverFault where a
        part of them is locked."""

    def host_unregister(self, address: int) -> None:
        """They may move again (cuMemHostUnregister)."""


class AlignedMemory:
    """Anonymous pages of the system, for engines that read the host's memory themselves. Implements HostMemory."""

    def allocate(self, size_bytes: int) -> memoryview:
        return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def free(self, memory: memoryview) -> None:
        """Nothing to do: the pages go with the last array over them."""


class LockedMemory:
    """Pages that a device copies from by itself. Implements HostMemory; not proved on a device."""

    def __init__(self, driver: PinDriver) -> None:
        self._driver = driver
        self._addresses: dict[int, int] = {}  # by the identity of the view

    def allocate(self, size_bytes: int) -> memoryview:
        address = self._driver.host_alloc(size_bytes)
        ctypes.memset(address, 0, size_bytes)
        memory = memoryview((ctypes.c_uint8 * size_bytes).from_address(address)).cast("B")
        self._addresses[id(memory)] = address
        return memory

    def free(self, memory: memoryview) -> None:
        self._driver.host_free(self._addresses.pop(id(memory)))


class RegisteredMemory:
    """Anonymous pages of the system that are locked in place, so that they stay arrays of this process's own when the
    device is gone. Implements HostMemory; not proved on a device."""

    def __init__(self, driver: PinDriver) -> None:
        self._driver = driver
        self._addresses: dict[int, int] = {}  # by the identity of the view

    def allocate(self, size_bytes: int) -> memoryview:
        memory = memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        address = ctypes.addressof(ctypes.c_uint8.from_buffer(memory))
        self._driver.host_register(address, size_bytes)
        self._addresses[id(memory)] = address
        return memory

    def free(self, memory: memoryview) -> None:
        self._driver.host_unregister(self._addresses.pop(id(memory)))


class PinnedPool:
    """`num_buffers` of `buffer_bytes` each, rounded up to whole pages. Use as a context manager."""

    def __init__(self, memory: HostMemory, num_buffers: int, buffer_bytes: int) -> None:
        """Raises PoolExhausted where there is no such memory."""
        if num_buffers < 1 or buffer_bytes < 1:
            raise ValueError(f"a pool of {num_buffers} buffers of {buffer_bytes} bytes cannot be")
        self._memory = memory
        self.buffer_bytes = -(-buffer_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._whole: memoryview | None = memory.allocate(num_buffers * self.buffer_bytes)
        except OutOfDeviceMemory as error:
            raise PoolExhausted(f"no {num_buffers} pinned buffers of {self.buffer_bytes} bytes") from error
        self._free = list(range(num_buffers))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @contextmanager
    def buffer(self) -> Iterator[memoryview]:
        """One of the buffers, with whatever the last user left in it. Raises PoolExhausted while all are out."""
        if self._whole is None:
            raise ValueError("the pool is closed")
        if not self._free:
            raise PoolExhausted("all pinned buffers are in use")
        number = self._free.pop()
        begin = number * self.buffer_bytes
        try:
            yield self._whole[begin : begin + self.buffer_bytes]
        finally:
            self._free.append(number)

    def close(self) -> None:
        """Returns the memory. Harmless when repeated."""
        if self._whole is not None:
            whole, self._whole = self._whole, None
            self._memory.free(whole)

    def __enter__(self) -> "PinnedPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
