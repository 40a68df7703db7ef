"""What an address range promises, whichever device it lies on. Bytes and pages; knows no blocks and no tokens."""

from typing import Protocol


class VirtualArena(Protocol):
    """`size_bytes` of address space. Physical pages come by `map_range`, or on the host when memory is first written,
    and leave by `release_range`."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def page_bytes(self) -> int:
        """The granule in which memory comes and goes."""

    def map_range(self, offset: int, length: int) -> None:
        """The range, in bytes, is going to be used: there is, or on the host will be, memory behind all of it. Raises
        PoolExhausted, having changed nothing, where there is none; ValueError if the range is not within the arena."""

    def release_range(self, offset: int, length: int) -> int:
        """Gives back the pages that lie wholly within the range, in bytes, and returns how many bytes that is; what
        they held is lost, and they read as zero. Raises ValueError if the range is not within the arena."""

    def resident_bytes(self) -> int:
        """Physical memory behind the arena now."""

    def close(self) -> None:
        """Returns all physical memory. Harmless when repeated; the arena cannot be used any more."""


def whole_pages(offset: int, length: int, page_bytes: int) -> tuple[int, int]:
    """(offset, length) of the whole pages within a range of bytes; length 0 where there are none."""
    first = -(-offset // page_bytes) * page_bytes
    last = (offset + length) // page_bytes * page_bytes
    return first, max(0, last - first)
