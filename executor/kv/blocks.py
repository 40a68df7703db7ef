"""The KV blocks of one engine: which are free, how often each is held, how many are promised. Knows numbers, not bytes.

One thread owns a pool and all that hangs on it (the step loop's).
"""

from types import TracebackType

import numpy as np

from headrace.core.errors import PoolExhausted
from headrace.executor.engines.protocol import Int32


class IntegrityError(AssertionError):
    """The program broke a rule of block accounting: a bug, not a state to be handled."""


class BlockPool:
    """Blocks 0 to num_blocks - 1 of `block_tokens` tokens. Those freed last are taken first: their memory is mapped."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_tokens} tokens cannot be")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._num_reserved = 0
        self._freed: dict[int, None] = {}  # in order of freeing; a block taken again leaves it

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, promised ones included."""
        return len(self._free)

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_reserved(self) -> int:
        """Free blocks that are promised."""
        return self._num_reserved

    @property
    def num_available(self) -> int:
        """Blocks that a new reservation can have."""
        return len(self._free) - self._num_reserved

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-num_tokens // self.block_tokens)

    def reserve(self, num_blocks: int) -> "Reservation":
        """Promises blocks. Raises PoolExhausted if not all of them are available."""
        if num_blocks < 0:
            raise ValueError(f"cannot reserve {num_blocks} blocks")
        if num_blocks > self.num_available:
            raise PoolExhausted(
                f"{num_blocks} KV blocks wanted, {self.num_available} of {self.num_blocks} available "
                f"({self.num_in_use} in use, {self.num_reserved} promised)",
                limit=f"{self.num_blocks} blocks",
            )
        self._num_reserved += num_blocks
        return Reservation(self, num_blocks)

    def share(self, block: int) -> None:
        """One more holder of a block in use."""
        if self._references[block] < 1:
            raise IntegrityError(f"block {block} is shared but free")
        self._references[block] += 1

    def drop(self, block: int) -> bool:
        """One holder less; True if that frees the block."""
        if self._references[block] < 1:
            raise IntegrityError(f"block {block} is dropped but free")
        self._references[block] -= 1
        if self._references[block]:
            return False
        self._free.append(block)
        self._freed[block] = None
        return True

    def references(self, block: int) -> int:
        """How many hold the block."""
        return self._references[block]

    def drain_freed(self) -> Int32:
        """The blocks freed since the last call and not taken again: their content is wanted by nobody. At most
        num_blocks, each once."""
        freed = np.fromiter(self._freed, np.int32, len(self._freed))
        self._freed.clear()
        return freed

    def check(self) -> None:
        """Raises IntegrityError unless every block is either free or held, and every promise can be kept. O(blocks)."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("a block is free twice")
        wrong = [block for block, count in enumerate(self._references) if (count == 0) != (block in free)]
        if wrong:
            raise IntegrityError(f"blocks both free and held, or neither: {wrong[:8]}")
        if not 0 <= self._num_reserved <= len(free):
            raise IntegrityError(f"{self._num_reserved} blocks promised, {len(free)} free")
        if not self._freed.keys() <= free:
            raise IntegrityError("a block in use is listed as freed")

    def _take_reserved(self) -> int:
        block = self._free.pop()
        self._num_reserved -= 1
        self._references[block] = 1
        self._freed.pop(block, None)
        return block

    def _return_reserved(self, num_blocks: int) -> None:
        self._num_reserved -= num_blocks


class Reservation:
    """A promise of blocks, taken one by one. Blocks taken belong to the taker; `release` returns what is left."""

    def __init__(self, pool: BlockPool, num_blocks: int) -> None:
        self._pool = pool
        self._num_left = num_blocks

    @property
    def num_left(self) -> int:
        return self._num_left

    def take(self) -> int:
        """A free block, held once by the caller. Raises PoolExhausted when the promise is used up."""
        if not self._num_left:
            raise PoolExhausted(f"the reservation is used up; {self._pool.num_available} KV blocks are available")
        self._num_left -= 1
        return self._pool._take_reserved()

    def release(self) -> None:
        """Returns the promise of blocks not taken. Harmless when repeated."""
        self._pool._return_reserved(self._num_left)
        self._num_left = 0

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
