"""Weighted durations in geometric cells: the mean exact, quantiles within two per cent, however many samples."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

_CELLS_PER_E = 50.0
_SHORTEST_S = 1e-6


@dataclass(slots=True)
class Histogram:
    """Of seconds."""

    weight: float = 0.0
    total: float = 0.0
    longest: float = 0.0
    _cells: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, seconds: float, weight: float = 1.0) -> None:
        self.weight += weight
        self.total += seconds * weight
        self.longest = max(self.longest, seconds)
        self._cells[round(math.log(max(seconds, _SHORTEST_S)) * _CELLS_PER_E)] += weight

    def merge(self, other: "Histogram") -> None:
        self.weight += other.weight
        self.total += other.total
        self.longest = max(self.longest, other.longest)
        for cell, weight in other._cells.items():
            self._cells[cell] += weight

    @property
    def mean(self) -> float | None:
        return self.total / self.weight if self.weight else None

    def quantile(self, share: float) -> float | None:
        left = share * self.weight
        for cell in sorted(self._cells):
            left -= self._cells[cell]
            if left <= 0:
                return min(math.exp(cell / _CELLS_PER_E), self.longest)
        return None
