"""One sequence's KV blocks in order of position. Owns its holds on them and its reservation."""

from collections.abc import Callable
from types import TracebackType

import numpy as np

from headrace.executor.engines.protocol import Int32
from headrace.executor.kv.blocks import BlockPool, Reservation


class BlockTable:
    """Grows out of `reservation`, which it owns from then on. `release` gives everything back."""

    def __init__(self, pool: BlockPool, reservation: Reservation) -> None:
        self._pool = pool
        self._reservation = reservation
        self._storage = np.empty(8, np.int32)
        self._num_blocks = 0
        self._capacity_tokens = 0
        self.num_published = 0  # of the first blocks: the pool knows their content

    @property
    def blocks(self) -> Int32:
        """[blocks], a view that is valid until the table grows or is released."""
        return self._storage[: self._num_blocks]

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit without taking more blocks."""
        return self._capacity_tokens

    def ensure(self, num_tokens: int) -> None:
        """Takes blocks until `num_tokens` tokens fit; O(1) when they do. Raises PoolExhausted, keeping what it took,
        when the reservation is used up."""
        while self._capacity_tokens < num_tokens:
            self._append(self._reservation.take())

    def adopt(self, blocks: list[int]) -> None:
        """Begins with these blocks, which the pool's cache has found."""
        for block in blocks:
            self._reservation.hold(block)
            self._append(block)
        self.num_published = len(blocks)

    def publish(self, digest: bytes, prefixes: tuple[int, ...]) -> None:
        """The first block not yet published is full; `digest` and `prefixes` stand for all tokens to its end."""
        self._pool.publish(int(self._storage[self.num_published]), digest, prefixes)
        self.num_published += 1

    def fork(
        self, num_tokens_shared: int, reservation: Reservation, copy_block: Callable[[int, int], None]
    ) -> "BlockTable":
        """A table that begins with this one's first `num_tokens_shared` tokens and grows by itself: full blocks are
        shared, a partly filled last one is copied by `copy_block(source, target)` into a block of `reservation`."""
        if num_tokens_shared > self._capacity_tokens:
            raise ValueError(f"{num_tokens_shared} tokens to share, the table holds {self._capacity_tokens}")
        child = BlockTable(self._pool, reservation)
        num_full, remainder = divmod(num_tokens_shared, self._pool.block_tokens)
        try:
            for block in self.blocks[:num_full].tolist():
                self._pool.share(block)
                child._append(block)
            child.num_published = min(num_full, self.num_published)
            if remainder:
                child.ensure(num_tokens_shared)
                copy_block(int(self._storage[num_full]), int(child._storage[num_full]))
        except BaseException:
            child.release()
            raise
        return child

    def release(self) -> None:
        """Drops all blocks and the rest of the reservation. Harmless when repeated."""
        for block in reversed(self.blocks.tolist()):  # so that the pool hands them out in the same order again
            self._pool.drop(block)
        self._num_blocks = self._capacity_tokens = self.num_published = 0
        self._reservation.release()

    def __enter__(self) -> "BlockTable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _append(self, block: int) -> None:
        if self._num_blocks == len(self._storage):
            # a new array, never a resized one: earlier views stay readable
            self._storage = np.concatenate([self._storage, np.empty_like(self._storage)])
        self._storage[self._num_blocks] = block
        self._num_blocks += 1
        self._capacity_tokens += self._pool.block_tokens
