"""Page-locked memory of the host: what was taken locked, and what was locked in place. Real bytes of this process."""

import ctypes
import mmap

from headrace.executor.cuda.fake.values import Limits, Result, require


class Pages:
    """Locked pages of one process."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.taken: dict[int, tuple[int, mmap.mmap]] = {}  # address to size and memory
        self.registered: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(size for size, _ in self.taken.values()) + sum(self.registered.values())

    def alloc(self, size: int) -> int:
        require(size > 0)
        self._fits(size)
        memory = mmap.mmap(-1, size)
        memory[:] = b"\xa5" * size  # what it holds is nobody's promise
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.taken[address] = (size, memory)
        return address

    def free(self, address: int) -> None:
        require(address in self.taken)
        del self.taken[address]

    def register(self, address: int, size: int) -> None:
        require(address > 0 and size > 0)
        require(not self._overlaps(address, size), Result.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        self._fits(size)
        self.registered[address] = size

    def unregister(self, address: int) -> None:
        require(address in self.registered, Result.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
        del self.registered[address]

    def locked(self, address: int, size: int) -> bool:
        """Whether a device can copy all of it by itself."""
        spans = [(first, length) for first, (length, _) in self.taken.items()] + list(self.registered.items())
        return any(first <= address and address + size <= first + length for first, length in spans)

    def _overlaps(self, address: int, size: int) -> bool:
        spans = [(first, length) for first, (length, _) in self.taken.items()] + list(self.registered.items())
        return any(first < address + size and address < first + length for first, length in spans)

    def _fits(self, size: int) -> None:
        require(self.used_bytes + size <= self._limits.pinned_bytes, Result.CUDA_ERROR_OUT_OF_MEMORY)
