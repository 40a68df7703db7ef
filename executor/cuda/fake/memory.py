"""A device's memory: address ranges, physical allocations, mappings between them, and who may use them.

An allocation lives as long as its handle or a mapping of it. A mapping can be used once access is set. Whole mappings
go, never parts of one; a range goes when nothing is mapped in it.
"""

import itertools
from dataclasses import dataclass

from headrace.executor.cuda.fake.values import (
    AccessDesc,
    AccessFlags,
    AllocationProp,
    AllocationType,
    Limits,
    LocationType,
    Result,
    require,
)


@dataclass
class Allocation:
    """Physical memory; `handle_open` until it is released. Its bytes are made when first written."""

    size: int
    device: int
    handle_open: bool = True
    num_mappings: int = 0
    content: bytearray | None = None

    def bytes(self) -> bytearray:
        if self.content is None:
            self.content = bytearray(self.size)
        return self.content


@dataclass
class Mapping:
    address: int
    allocation: Allocation
    access: dict[int, AccessFlags]

    @property
    def end(self) -> int:
        return self.address + self.allocation.size


class Memory:
    """Of all devices of one process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.ranges: dict[int, int] = {}  # address to size
        self.handles: dict[int, Allocation] = {}  # open and closed ones: a closed handle is never given again
        self.mappings: dict[int, Mapping] = {}
        self._next_address = 1 << 40
        self._next_handle = 1

    def used_bytes(self, device: int) -> int:
        return sum(each.size for each in self.living() if each.device == device)

    def living(self) -> list[Allocation]:
        return [each for each in self.handles.values() if each.handle_open or each.num_mappings]

    def reserve(self, size: int, alignment: int) -> int:
        granule = self.limits.granule_bytes
        require(size > 0 and size % granule == 0 and (alignment & (alignment - 1)) == 0)
        reserved = sum(self.ranges.values())
        require(reserved + size <= self.limits.address_bytes, Result.CUDA_ERROR_OUT_OF_MEMORY)
        step = max(alignment, granule)
        address = -(-self._next_address // step) * step
        self._next_address = address + size + granule  # a gap, so that running over the end meets nothing
        self.ranges[address] = size
        return address

    def free(self, address: int, size: int) -> None:
        require(self.ranges.get(address) == size)
        require(not self.overlapping(address, size))
        del self.ranges[address]

    def create(self, size: int, prop: AllocationProp) -> int:
        require(size > 0 and size % self.limits.granule_bytes == 0)
        require(prop.type == AllocationType.CU_MEM_ALLOCATION_TYPE_PINNED)
        require(prop.location.type == LocationType.CU_MEM_LOCATION_TYPE_DEVICE)
        device = prop.location.id
        require(0 <= device < self.limits.num_devices, Result.CUDA_ERROR_INVALID_DEVICE)
        require(self.used_bytes(device) + size <= self.limits.memory_bytes, Result.CUDA_ERROR_OUT_OF_MEMORY)
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self.handles[handle] = Allocation(size, device)
        return handle

    def release(self, handle: int) -> None:
        allocation = self._open(handle)
        allocation.handle_open = False

    def map(self, address: int, size: int, offset: int, handle: int) -> None:
        allocation = self._open(handle)
        require(offset == 0 and size == allocation.size and address % self.limits.granule_bytes == 0)
        require(any(first <= address and address + size <= first + length for first, length in self.ranges.items()))
        require(not self.overlapping(address, size))
        allocation.num_mappings += 1
        self.mappings[address] = Mapping(address, allocation, {})

    def set_access(self, address: int, size: int, descriptions: list[AccessDesc]) -> None:
        require(bool(descriptions))
        for each in descriptions:
            device = each.location.id
            require(each.location.type == LocationType.CU_MEM_LOCATION_TYPE_DEVICE)
            require(0 <= device < self.limits.num_devices, Result.CUDA_ERROR_INVALID_DEVICE)
        whole = self._whole(address, size)
        for each in descriptions:
            for mapping in whole:
                reached = self.limits.peers or each.location.id == mapping.allocation.device
                require(reached, Result.CUDA_ERROR_INVALID_DEVICE)
                mapping.access[each.location.id] = each.flags

    def unmap(self, address: int, size: int) -> None:
        for mapping in self._whole(address, size):
            mapping.allocation.num_mappings -= 1
            if not mapping.allocation.num_mappings and not mapping.allocation.handle_open:
                mapping.allocation.content = None
            del self.mappings[mapping.address]

    def overlapping(self, address: int, size: int) -> list[Mapping]:
        """The mappings of which a byte lies within, in the order of their addresses."""
        found = [each for each in self.mappings.values() if each.address < address + size and address < each.end]
        return sorted(found, key=lambda each: each.address)

    def usable(self, address: int, size: int, device: int) -> bool:
        """Whether the device may read and write all of it."""
        place = address
        for mapping in self.overlapping(address, size):
            may = mapping.access.get(device) is AccessFlags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if mapping.address > place or not may:
                return False
            place = mapping.end
        return size == 0 or place >= address + size

    def read(self, address: int, size: int) -> bytes:
        parts = []
        for mapping in self.overlapping(address, size):
            begin, end = max(address, mapping.address), min(address + size, mapping.end)
            parts.append(bytes(mapping.allocation.bytes()[begin - mapping.address : end - mapping.address]))
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        for mapping in self.overlapping(address, len(data)):
            begin, end = max(address, mapping.address), min(address + len(data), mapping.end)
            part = data[begin - address : end - address]
            mapping.allocation.bytes()[begin - mapping.address : end - mapping.address] = part

    def _open(self, handle: int) -> Allocation:
        allocation = self.handles.get(handle)
        require(allocation is not None and allocation.handle_open)
        assert allocation is not None  # for the type checker
        return allocation

    def _whole(self, address: int, size: int) -> list[Mapping]:
        """The mappings that fill the range exactly; fails where there are others, or gaps."""
        found = self.overlapping(address, size)
        require(bool(found) and found[0].address == address and found[-1].end == address + size)
        require(all(one.end == other.address for one, other in itertools.pairwise(found)))
        return found
