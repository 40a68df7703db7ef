"""Blocks that hold nothing, by the extents of memory that they lie in: an extent is whole pages under several blocks.

An extent is mapped when the first of its blocks is taken, and may be given back once all are free. Blocks of extents
that are in use already are taken first, then those of the extent that emptied last, then those of one not mapped: so
what is mapped and unused stays little, and what has long been empty can go.
"""

from typing import Protocol

import numpy as np

from headrace.executor.engines.protocol import Int32


class BlockMemory(Protocol):
    """The physical memory under blocks."""

    def map_blocks(self, first: int, count: int) -> None:
        """An extent's blocks come into use. Raises PoolExhausted, having changed nothing, where there is no memory."""

    def unmap_blocks(self, blocks: Int32) -> None:
        """Whole extents' blocks, in any order: their content is wanted by nobody."""


class WrittenMemory:
    """Memory that comes with the first write, like anonymous pages, and never goes: nothing to be done."""

    def map_blocks(self, first: int, count: int) -> None:
        del first, count

    def unmap_blocks(self, blocks: Int32) -> None:
        del blocks


class Extents:
    """The free blocks of `num_blocks`, `extent_blocks` an extent; the last extent may have fewer. `now` in seconds."""

    def __init__(self, num_blocks: int, extent_blocks: int, memory: BlockMemory) -> None:
        self.num_free = num_blocks
        self._num_blocks = num_blocks
        self._extent_blocks = extent_blocks
        self._memory = memory
        self._partial: dict[int, list[int]] = {}  # mapped, some blocks taken: the free ones
        self._empty: dict[int, float] = {}  # mapped, no block taken: since when, the longest first
        self._unmapped = list(range(-(-num_blocks // extent_blocks) - 1, -1, -1))
        self.num_mapped_blocks = 0

    def take(self) -> int:
        """A free block. Raises PoolExhausted where its extent cannot be mapped; there must be one."""
        if self._partial:
            extent, free = self._partial.popitem()
        elif self._empty:
            extent = self._empty.popitem()[0]
            free = self._blocks_of(extent)
        else:
            extent = self._unmapped[-1]
            free = self._blocks_of(extent)
            self._memory.map_blocks(free[-1], len(free))
            self._unmapped.pop()
            self.num_mapped_blocks += len(free)
        block = free.pop()
        if free:
            self._partial[extent] = free
        self.num_free -= 1
        return block

    def give(self, block: int, now: float) -> None:
        """The block is free again."""
        extent = block // self._extent_blocks
        free = self._partial.pop(extent, [])
        free.append(block)
        if len(free) == self._size_of(extent):
            self._empty[extent] = now
        else:
            self._partial[extent] = free
        self.num_free += 1

    def unmap(self, now: float, hold_s: float, most_blocks: int) -> None:
        """Gives back memory of extents that have been empty for `hold_s`, the longest first, until so many blocks or
        more have gone."""
        blocks: list[int] = []
        extents: list[int] = []
        for extent, since in self._empty.items():
            if since + hold_s > now or len(blocks) >= most_blocks:
                break
            extents.append(extent)
            blocks += self._blocks_of(extent)
        if blocks:
            self._memory.unmap_blocks(np.array(blocks, np.int32))
            for extent in extents:
                del self._empty[extent]
            self._unmapped += extents
            self.num_mapped_blocks -= len(blocks)

    @property
    def empty_since(self) -> float | None:
        """When the extent that has been empty for longest became so; None where none is."""
        return next(iter(self._empty.values()), None)

    def free_blocks(self) -> list[int]:
        """All free blocks, mapped or not. O(blocks)."""
        partial = [block for free in self._partial.values() for block in free]
        return partial + [block for extent in (*self._empty, *self._unmapped) for block in self._blocks_of(extent)]

    def mapped_blocks(self) -> set[int]:
        """All blocks of mapped extents. O(blocks)."""
        unmapped = {block for extent in self._unmapped for block in self._blocks_of(extent)}
        return set(range(self._num_blocks)) - unmapped

    def _blocks_of(self, extent: int) -> list[int]:
        """Highest first: they are taken from the end."""
        first = extent * self._extent_blocks
        return list(range(first + self._size_of(extent) - 1, first - 1, -1))

    def _size_of(self, extent: int) -> int:
        return min(self._extent_blocks, self._num_blocks - extent * self._extent_blocks)
