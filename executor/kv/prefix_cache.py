"""Which blocks hold how a prompt begins, found by hash; and of those that nobody holds, who was used least lately.

It keeps the books only: `BlockPool` says when a block is held and when it is wanted for something else.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.executor.kv.integrity import IntegrityError

_MOST_EVENTS = 8192


class PrefixEvent(NamedTuple):
    """A beginning, by the hash that the scheduler knows it by, is here from now on, or no longer."""

    prefix: int
    here: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    prefixes: tuple[int, ...]


@dataclass(slots=True)
class CacheCounts:
    """Since the start: tokens of prompts, and how many of them came out of the cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class PrefixCache:
    """`seed` is all that a block's content depends on beside the tokens before and in it; `model` is the name that the
    scheduler knows. With `answers` blocks that hold tokens of answers are kept too. While there is no work,
    `idle_blocks` stay at most.

    `events` may be emptied from any thread; the oldest go where nobody does.
    """

    seed: bytes
    model: str = ""
    answers: bool = False
    idle_blocks: int = 0
    counts: CacheCounts = field(default_factory=CacheCounts)
    events: deque[PrefixEvent] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    _blocks: dict[bytes, int] = field(default_factory=dict)
    _entries: dict[int, _Entry] = field(default_factory=dict)
    _idle: dict[int, float] = field(default_factory=dict)  # held by nobody, since when, the longest first

    @property
    def num_idle(self) -> int:
        """Blocks that are kept though nobody holds them."""
        return len(self._idle)

    @property
    def idle_since(self) -> float | None:
        """When the block that goes next was last held; None where there is none."""
        return next(iter(self._idle.values()), None)

    def find(self, digests: list[bytes]) -> list[int]:
        """The blocks of the longest known beginning."""
        blocks = []
        for digest in digests:
            block = self._blocks.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def knows(self, block: int) -> bool:
        return block in self._entries

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def add(self, block: int, digest: bytes, prefixes: tuple[int, ...]) -> None:
        """The block, which somebody holds, has its content. A second one with the same is not wanted."""
        if digest in self._blocks:
            return
        if block in self._entries:
            raise IntegrityError(f"block {block} holds two beginnings")
        self._blocks[digest] = block
        self._entries[block] = _Entry(digest, prefixes)
        self.events.extend(PrefixEvent(prefix, True) for prefix in prefixes)

    def rest(self, block: int, now: float) -> None:
        """Nobody holds the block any more."""
        self._idle[block] = now

    def wake(self, block: int) -> None:
        """Somebody holds the block again. Says once more that it is here: the scheduler may be a new one."""
        del self._idle[block]
        self.events.extend(PrefixEvent(prefix, True) for prefix in self._entries[block].prefixes)

    def evict(self) -> int:
        """Forgets the idle block that has not been held for longest, and returns it."""
        block = next(iter(self._idle))
        del self._idle[block]
        entry = self._entries.pop(block)
        del self._blocks[entry.digest]
        self.events.extend(PrefixEvent(prefix, False) for prefix in entry.prefixes)
        return block

    def tell_again(self) -> None:
        """All that is here, as if it had just come: somebody new listens. From any thread."""
        for entry in list(self._entries.values()):
            self.events.extend(PrefixEvent(prefix, True) for prefix in entry.prefixes)

    def take_events(self, most: int) -> tuple[list[int], list[int]]:
        """The oldest events, `most` of them or fewer: what came and what went, where only the last of a prefix counts.
        From any thread."""
        last: dict[int, bool] = {}
        for _ in range(most):
            try:
                prefix, here = self.events.popleft()
            except IndexError:
                break
            last[prefix] = here
        return [prefix for prefix, here in last.items() if here], [prefix for prefix, here in last.items() if not here]

    def check(self, held: set[int], free: set[int]) -> None:
        """Raises IntegrityError unless each known block is held or idle and found by its own hash alone."""
        if self._entries.keys() & free:
            raise IntegrityError("a free block is known by a hash")
        if {block: digest for digest, block in self._blocks.items()} != {
            block: entry.digest for block, entry in self._entries.items()
        }:
            raise IntegrityError("hashes and blocks disagree")
        if self._entries.keys() - held != self._idle.keys():
            raise IntegrityError("a known block is neither held nor idle, or both")
        if list(self._idle.values()) != sorted(self._idle.values()):
            raise IntegrityError("idle blocks are out of order")
