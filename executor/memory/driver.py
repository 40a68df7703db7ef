"""The calls of a device's driver that an arena is made of, as CUDA's virtual memory management has them.

Addresses are plain integers, handles stand for physical memory. Each call names the driver's function in its docstring.
"""

from typing import Protocol


class OutOfDeviceMemory(Exception):
    """The device has no physical memory left (CUDA_ERROR_OUT_OF_MEMORY)."""


class DriverFault(OSError):
    """A call was misused, or the device is gone: the driver's function, and its result by name."""

    def __init__(self, call: str, result: str) -> None:
        super().__init__(f"{call}: {result}")
        self.call = call
        self.result = result


class MemoryDriver(Protocol):
    """All sizes in bytes, all of them multiples of `granularity_bytes`. Any call may raise DriverFault."""

    @property
    def granularity_bytes(self) -> int:
        """The least that is mapped at once (cuMemGetAllocationGranularity, 2 MiB on today's devices)."""

    def reserve(self, size_bytes: int) -> int:
        """An address range with nothing behind it (cuMemAddressReserve). Raises OutOfDeviceMemory."""

    def free(self, address: int, size_bytes: int) -> None:
        """Gives a whole unmapped range back (cuMemAddressFree)."""

    def create(self, size_bytes: int) -> int:
        """Physical memory; returns its handle (cuMemCreate). Raises OutOfDeviceMemory."""

    def release(self, handle: int) -> None:
        """The handle is done with; the memory goes once it is unmapped too (cuMemRelease)."""

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        """Puts the memory behind the addresses (cuMemMap); nobody may touch it yet."""

    def set_access(self, address: int, size_bytes: int) -> None:
        """The device may read and write there (cuMemSetAccess)."""

    def unmap(self, address: int, size_bytes: int) -> None:
        """Takes the memory away from behind whole mappings (cuMemUnmap). The device must have finished with it."""
