"""Which executors have which beginnings of prompts in their caches, as far as they have told. Pure and bounded.

A hint for placement: what is here may be out of date, cut short or collide, and then a prompt is computed where it
might have been found. Nothing else depends on it.
"""

from collections.abc import Iterable, Sequence

MOST_PREFIXES = 65_536
"""Of one executor; those told of longest ago go first. At 32 tokens each that is two million tokens."""
_MOST_HOLDERS = 8


class PrefixIndex:
    """Beginnings by hash (64 bits), executors by id."""

    def __init__(self, most_prefixes: int = MOST_PREFIXES) -> None:
        self._most_prefixes = most_prefixes
        self._holders: dict[int, dict[str, None]] = {}
        self._of: dict[str, dict[int, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._holders)

    def add(self, executor_id: str, prefixes: Iterable[int]) -> None:
        known = self._of.setdefault(executor_id, {})
        for prefix in prefixes:
            known.pop(prefix, None)  # to the end
            known[prefix] = None
            self._holders.setdefault(prefix, {})[executor_id] = None
        while len(known) > self._most_prefixes:
            self._drop(executor_id, next(iter(known)))

    def remove(self, executor_id: str, prefixes: Iterable[int]) -> None:
        """Those that it is not known to have are passed over."""
        known = self._of.get(executor_id, {})
        for prefix in prefixes:
            if prefix in known:
                self._drop(executor_id, prefix)

    def forget(self, executor_id: str) -> None:
        """The executor is gone, or comes back with nothing."""
        for prefix in list(self._of.get(executor_id, ())):
            self._drop(executor_id, prefix)
        self._of.pop(executor_id, None)

    def longest(self, prefixes: Sequence[int], most: int = _MOST_HOLDERS) -> dict[str, int]:
        """How many of the prompt's borders are cached, for the executors that have the most of it; `most` of them.

        O(borders): one that has a later border is taken to have the earlier ones.
        """
        depth = 0
        while depth < len(prefixes) and prefixes[depth] in self._holders:
            depth += 1
        found: dict[str, int] = {}
        for border in range(depth, 0, -1):
            for executor_id in self._holders[prefixes[border - 1]]:
                if executor_id not in found:
                    found[executor_id] = border
                    if len(found) == most:
                        return found
        return found

    def _drop(self, executor_id: str, prefix: int) -> None:
        del self._of[executor_id][prefix]
        holders = self._holders[prefix]
        del holders[executor_id]
        if not holders:
            del self._holders[prefix]
