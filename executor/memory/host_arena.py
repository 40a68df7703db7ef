"""An arena in the host's memory: an anonymous private mapping without reserved swap (mmap(2) MAP_NORESERVE), whose
pages go back by madvise(2) MADV_DONTNEED. Linux."""

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.executor.memory.arena import whole_pages

_MAP_NORESERVE = 0x4000  # not in Python's mmap before 3.13


class HostArena:
    """Implements VirtualArena. Arrays over the arena keep the address range, not its content, beyond `close`."""

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < 1:
            raise ValueError(f"an arena of {size_bytes} bytes cannot be")
        self.size_bytes = size_bytes
        self.page_bytes = mmap.PAGESIZE
        self._memory: mmap.mmap | None = mmap.mmap(
            -1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        )

    def map_range(self, offset: int, length: int) -> None:
        """Nothing but a check: the system maps pages as they are written."""
        self._check(offset, length)

    def as_array(self, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """The arena's first bytes as an array over the same memory. Raises ValueError if the arena is smaller."""
        wanted = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if wanted > self.size_bytes:
            raise ValueError(f"an array of {wanted} bytes does not fit an arena of {self.size_bytes}")
        return np.ndarray(shape, dtype, buffer=self._open())

    def release_range(self, offset: int, length: int) -> int:
        self._check(offset, length)
        first, inner = whole_pages(offset, length, self.page_bytes)
        if inner:
            self._open().madvise(mmap.MADV_DONTNEED, first, inner)
        return inner

    def resident_bytes(self) -> int:
        memory = self._open()
        pages = np.zeros(-(-self.size_bytes // self.page_bytes), np.uint8)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        # mincore(2): the lowest bit of each page's byte says whether it is in memory
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(self.size_bytes), ctypes.c_void_p(pages.ctypes.data)):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return int(np.count_nonzero(pages & 1)) * self.page_bytes

    def close(self) -> None:
        if self._memory is not None:
            # not mmap.close(), which refuses while arrays are over it: the range itself goes with the last of them
            self._memory.madvise(mmap.MADV_DONTNEED)
            self._memory = None

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise ValueError(f"bytes {offset} to {offset + length} are not within an arena of {self.size_bytes}")

    def _open(self) -> mmap.mmap:
        if self._memory is None:
            raise ValueError("the arena is closed")
        return self._memory
