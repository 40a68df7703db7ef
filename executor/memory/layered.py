"""The memory under KV blocks: one arena for each layer's keys and each layer's values, mapped together."""

import math
from collections.abc import Sequence

import numpy as np

from headrace.executor.engines.protocol import Int32
from headrace.executor.memory.arena import VirtualArena


def extent_blocks(block_bytes: Sequence[int], page_bytes: int) -> int:
    """How many blocks lie on whole pages in every arena: the least common multiple over blocks of these sizes."""
    return math.lcm(*(page_bytes // math.gcd(page_bytes, size) for size in block_bytes))


class LayeredMemory:
    """Implements kv.extents.BlockMemory: block b of arena i is its bytes b * block_bytes[i] and on."""

    def __init__(self, arenas: Sequence[VirtualArena], block_bytes: Sequence[int]) -> None:
        if not arenas or len(arenas) != len(block_bytes):
            raise ValueError(f"{len(arenas)} arenas and {len(block_bytes)} sizes of a block")
        self._arenas = tuple(zip(arenas, block_bytes, strict=True))

    @property
    def extent_blocks(self) -> int:
        """Blocks that come and go together."""
        return math.lcm(*(extent_blocks([size], arena.page_bytes) for arena, size in self._arenas))

    def map_blocks(self, first: int, count: int) -> None:
        """In all arenas, or in none and PoolExhausted."""
        done: list[tuple[VirtualArena, int]] = []
        try:
            for arena, size in self._arenas:
                arena.map_range(*_range(arena, size, first, count))
                done.append((arena, size))
        except BaseException:
            for arena, size in done:
                arena.release_range(*_range(arena, size, first, count))
            raise

    def unmap_blocks(self, blocks: Int32) -> None:
        """What they held is lost."""
        for first, count in runs(blocks):
            for arena, size in self._arenas:
                arena.release_range(*_range(arena, size, first, count))


def _range(arena: VirtualArena, block_bytes: int, first: int, count: int) -> tuple[int, int]:
    """(offset, length) of the blocks; the last extent, which may be short, has the rest of its last page too."""
    offset, end = first * block_bytes, (first + count) * block_bytes
    if end + arena.page_bytes > arena.size_bytes:
        end = arena.size_bytes
    return offset, end - offset


def runs(blocks: Int32) -> list[tuple[int, int]]:
    """Block numbers, in any order, as (first, count) of consecutive ones."""
    ordered = np.sort(blocks)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(ordered, breaks) if len(run)]
