"""Due times by key: O(log n) to set, O(1) to cancel, nothing scanned."""

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """At most one due time a key. Cancelled entries stay in the heap until they are half of it."""

    def __init__(self) -> None:
        self._due: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()  # keys need no order, and equal times fire in the order they were set

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: Key, due: float) -> None:
        """Sets or moves the key's due time."""
        entry = due, next(self._numbers)
        self._due[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        self._compact()

    def cancel(self, key: Key) -> None:
        """Forgets the key; one that is not set is fine."""
        if self._due.pop(key, None) is not None:
            self._compact()

    def pop_due(self, now: float) -> list[Key]:
        """Takes out the keys due at `now`, earliest first."""
        if not self._heap or self._heap[0][0] > now:  # the most frequent case by far
            return []
        keys = []
        while (first := self._first()) is not None and first[0] <= now:
            heapq.heappop(self._heap)
            del self._due[first[2]]
            keys.append(first[2])
        return keys

    def next_due(self) -> float | None:
        """The earliest due time, None if nothing is set."""
        first = self._first()
        return first[0] if first else None

    def _first(self) -> tuple[float, int, Key] | None:
        while self._heap:
            due, number, key = self._heap[0]
            if self._due.get(key) == (due, number):
                return self._heap[0]
            heapq.heappop(self._heap)
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(due, number, key) for key, (due, number) in self._due.items()]
            heapq.heapify(self._heap)
