"""The KV blocks of one engine: which are free, how often each is held, how many are promised. Knows numbers, not bytes.

A block that nobody holds is free or, if the prefix cache knows it, kept until its place is wanted. One thread owns a
pool and all that hangs on it (the step loop's).
"""

from dataclasses import dataclass
from types import TracebackType

from headrace.core.errors import PoolExhausted
from headrace.executor.kv.extents import BlockMemory, Extents, WrittenMemory
from headrace.executor.kv.integrity import IntegrityError
from headrace.executor.kv.prefix_cache import PrefixCache

HOLD_S = 1.0
"""How long memory stays mapped once nothing is in it: steady load takes it again well within this time."""
_MOST_BUSY, _MOST_IDLE = 16, 64
"""Blocks whose memory is given back at once: a bound on how long a step, or a request that comes, waits for it."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """Counts at one moment. `used` are held or kept by the cache; the oldest kept one is `cache_age_s` old."""

    num_held: int
    num_cached: int
    num_reserved: int
    num_mapped: int
    cache_age_s: float
    prompt_tokens: int
    cached_tokens: int

    @property
    def num_used(self) -> int:
        return self.num_held + self.num_cached

    @property
    def fragmentation(self) -> float:
        """The share of mapped memory that holds nothing."""
        return 1 - self.num_used / self.num_mapped if self.num_mapped else 0.0


class BlockPool:
    """Blocks 0 to num_blocks - 1 of `block_tokens` tokens; `memory` maps them by `extent_blocks`."""

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        *,
        extent_blocks: int = 1,
        memory: BlockMemory | None = None,
        cache: PrefixCache | None = None,
    ) -> None:
        if num_blocks < 1 or block_tokens < 1 or extent_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_tokens} tokens cannot be")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.cache = cache
        self._extents = Extents(num_blocks, extent_blocks, memory or WrittenMemory())
        self._references = [0] * num_blocks
        self._num_reserved = 0
        self._now = 0.0

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, kept and promised ones included."""
        return self._extents.num_free + self.num_cached

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and the cache keeps."""
        return self.cache.num_idle if self.cache else 0

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_reserved(self) -> int:
        """Of those that nobody holds, how many are promised."""
        return self._num_reserved

    @property
    def num_available(self) -> int:
        """Blocks that a new reservation can have."""
        return self.num_free - self._num_reserved

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

    def held_by_nobody(self, blocks: list[int]) -> int:
        """How many of these, which the cache knows, a reservation is needed for to hold them."""
        return sum(not self._references[block] for block in blocks)

    def share(self, block: int) -> None:
        """One more holder of a block in use."""
        if self._references[block] < 1:
            raise IntegrityError(f"block {block} is shared but free")
        self._references[block] += 1

    def drop(self, block: int) -> bool:
        """One holder less; True if that was the last."""
        if self._references[block] < 1:
            raise IntegrityError(f"block {block} is dropped but free")
        self._references[block] -= 1
        if self._references[block]:
            return False
        if self.cache and self.cache.knows(block):
            self.cache.rest(block, self._now)
        else:
            self._extents.give(block, self._now)
        return True

    def publish(self, block: int, digest: bytes, prefixes: tuple[int, ...] = ()) -> None:
        """A full block in use has the content that the hash stands for, and will keep it: others may share it."""
        if self._references[block] < 1:
            raise IntegrityError(f"block {block} is published but free")
        if self.cache:
            self.cache.add(block, digest, prefixes)

    def references(self, block: int) -> int:
        """How many hold the block."""
        return self._references[block]

    def give_back(self, now: float, *, idle: bool = False) -> float | None:
        """Gives some memory back that has held nothing for HOLD_S; with `idle`, what the cache keeps beyond its bound
        goes too, the least lately used first. Returns in how many seconds there is more to do, None: never."""
        self._now = max(now, self._now)
        more, most = False, _MOST_IDLE if idle else _MOST_BUSY
        if idle and self.cache:
            surplus = self.cache.num_idle - self.cache.idle_blocks
            more = surplus > most
            for _ in range(min(surplus, most)):
                self._extents.give(self.cache.evict(), self._now)
        self._extents.unmap(self._now, HOLD_S, most)
        since = self._extents.empty_since
        if more:
            return 0.0
        return None if since is None else max(0.0, since + HOLD_S - self._now)

    def state(self) -> PoolState:
        since = self.cache.idle_since if self.cache else None
        return PoolState(
            num_held=self.num_in_use,
            num_cached=self.num_cached,
            num_reserved=self._num_reserved,
            num_mapped=self._extents.num_mapped_blocks,
            cache_age_s=0.0 if since is None else self._now - since,
            prompt_tokens=self.cache.counts.prompt_tokens if self.cache else 0,
            cached_tokens=self.cache.counts.cached_tokens if self.cache else 0,
        )

    def check(self) -> None:
        """Raises IntegrityError unless every block is free, held or kept, and every promise can be kept. O(blocks)."""
        listed = self._extents.free_blocks()
        free = set(listed)
        if len(free) != len(listed) or len(free) != self._extents.num_free:
            raise IntegrityError("a block is free twice")
        held = {block for block, count in enumerate(self._references) if count}
        kept = {block for block in range(self.num_blocks) if self.cache and self.cache.is_idle(block)}
        if held & free or held & kept or free & kept or len(held) + len(free) + len(kept) != self.num_blocks:
            raise IntegrityError("a block is not just one of held, kept and free")
        if self.cache:
            self.cache.check(held, free)
        if not 0 <= self._num_reserved <= self.num_free:
            raise IntegrityError(f"{self._num_reserved} blocks promised, {self.num_free} held by nobody")
        mapped = self._extents.mapped_blocks()
        if not held | kept <= mapped or len(mapped) != self._extents.num_mapped_blocks:
            raise IntegrityError("a block in use is not mapped, or the count of those mapped is wrong")

    def _take_reserved(self) -> int:
        """A free block, else the one that the cache would miss least, also where mapping another fails."""
        cache = self.cache
        try:
            block = self._extents.take() if self._extents.num_free or not cache else cache.evict()
        except PoolExhausted:
            if not cache or not cache.num_idle:
                raise
            block = cache.evict()
        self._num_reserved -= 1
        self._references[block] = 1
        return block

    def _hold_reserved(self, block: int) -> None:
        if not self.cache or not self.cache.is_idle(block):
            raise IntegrityError(f"block {block} is not kept")
        self.cache.wake(block)
        self._num_reserved -= 1
        self._references[block] = 1

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
        """A free block, held once by the caller. Raises PoolExhausted when the promise is used up, or when there is no
        memory to map."""
        self._want()
        block = self._pool._take_reserved()
        self._num_left -= 1
        return block

    def hold(self, block: int) -> None:
        """Holds a block that the cache found, which counts as one of the promise only if nobody else holds it."""
        if self._pool.references(block):
            self._pool.share(block)
        else:
            self._want()
            self._pool._hold_reserved(block)
            self._num_left -= 1

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

    def _want(self) -> None:
        if not self._num_left:
            raise PoolExhausted(f"the reservation is used up; {self._pool.num_available} KV blocks are available")
