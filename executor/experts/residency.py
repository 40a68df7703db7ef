"""Which of a layer's experts are on the device, which goes when another comes, which come ahead of time. Pure.

Each layer has places of its own: layers are passed in a circle, so that one LRU over all of them would always let go
the experts that are wanted next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.executor.engines.protocol import Float32


@dataclass(frozen=True, slots=True)
class Placed:
    """The expert takes `slot`, from `evicted` where that was not free."""

    expert: int
    slot: int
    evicted: int | None


class Residency:
    """The `num_slots` places of one layer. An expert that is locked, because the running step reads it or because its
    copy is under way, keeps its place."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a layer with {num_slots} places for experts cannot run")
        self.num_slots = num_slots
        self._slots: dict[int, int] = {}  # by expert, the one used least lately first
        self._free = list(reversed(range(num_slots)))
        self._locks: dict[int, int] = {}

    def __contains__(self, expert: int) -> bool:
        return expert in self._slots

    def slot(self, expert: int) -> int:
        """Raises KeyError for one that has none."""
        return self._slots[expert]

    @property
    def experts(self) -> tuple[int, ...]:
        """Those that have a place, the one used least lately first."""
        return tuple(self._slots)

    @property
    def evictable(self) -> tuple[int, ...]:
        """Of them, those that are not locked."""
        return tuple(expert for expert in self._slots if expert not in self._locks)

    def is_locked(self, expert: int) -> bool:
        return expert in self._locks

    def lock(self, expert: int) -> None:
        """Once more; as often `unlock`. Raises KeyError for one that has no place."""
        self._slots[expert]
        self._locks[expert] = self._locks.get(expert, 0) + 1

    def unlock(self, expert: int) -> None:
        """Raises KeyError for one that is not locked."""
        left = self._locks.pop(expert) - 1
        if left:
            self._locks[expert] = left

    def touch(self, expert: int) -> None:
        """It is used now."""
        self._slots[expert] = self._slots.pop(expert)

    def place(self, expert: int, instead: int | None = None) -> Placed | None:
        """Gives it a free place, else that of `instead`, else that of the evictable one used least lately; None where
        all are locked. Raises ValueError for one that has a place, and where `instead` may not go."""
        if expert in self._slots:
            raise ValueError(f"expert {expert} has a place")
        if instead is not None and (instead not in self._slots or instead in self._locks):
            raise ValueError(f"expert {instead} may not go")
        evicted: int | None = None
        if self._free:
            slot = self._free.pop()
        else:
            evicted = instead if instead is not None else next(iter(self.evictable), None)
            if evicted is None:
                return None
            slot = self._slots.pop(evicted)
        self._slots[expert] = slot
        return Placed(expert, slot, evicted)


@dataclass(frozen=True, slots=True)
class Exchange:
    """`expert` is worth loading ahead, in the place of `instead`; None: there is a free one."""

    expert: int
    instead: int | None


def choose_ahead(
    scores: Float32, resident: Sequence[int], evictable: Iterable[int], num_free: int, most: int, margin: float = 2.0
) -> list[Exchange]:
    """What to load before it is asked for: `most` experts at most, the likeliest first.

    `scores` [E] are how often each is expected to be asked for. Free places are filled with what has any score; beyond
    them one comes only for an evictable one with less than 1 / `margin` of its score, since a wrong guess costs a copy
    and later another.
    """
    there = set(resident)
    coming = [int(expert) for expert in np.argsort(-scores, kind="stable") if int(expert) not in there]
    leaving = sorted(evictable, key=lambda expert: float(scores[expert]))  # stable: of equal ones the least late
    chosen: list[Exchange] = []
    for expert in coming[:most]:
        score = float(scores[expert])
        if score <= 0:
            break
        if num_free > 0:
            num_free -= 1
            chosen.append(Exchange(expert, None))
        elif leaving and float(scores[leaving[0]]) * margin < score:
            chosen.append(Exchange(expert, leaving.pop(0)))
        else:
            break
    return chosen
