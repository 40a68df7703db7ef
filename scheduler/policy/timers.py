"""Due times by key: O(1) to cancel and to put off, O(log n) to set, nothing scanned."""

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """At most one due time a key.

    A time put off, as a lease's is by each report, moves in the heap only when its old place comes up. What is
    cancelled stays in the heap until it is half of it.
    """

    def __init__(self) -> None:
        self._due: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()  # keys need no order, and equal times fire in the order they were set

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: Key, due: float) -> None:
        """Sets or moves the key's due time."""
        entry = due, next(self._numbers)
        before = self._due.get(key)
        self._due[key] = entry
        if before is None or due < before[0]:
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
            entry = self._heap[0]
            key = entry[2]
            current = self._due.get(key)
            if current is None:
                heapq.heappop(self._heap)
            elif current[1] == entry[1]:
                return entry
            else:  # put off, or a second entry of its key
                heapq.heapreplace(self._heap, (*current, key))
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(due, number, key) for key, (due, number) in self._due.items()]
            heapq.heapify(self._heap)
