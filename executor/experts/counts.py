"""What is counted of experts on demand."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """Since the start. Each time a layer asks for an expert it is a hit, early (fetched ahead, and used for the first
    time), or a miss. `stall_s` is how long steps waited for copies. `num_wasted` were fetched ahead and never used."""

    num_hits: int = 0
    num_early: int = 0
    num_misses: int = 0
    num_wasted: int = 0
    stall_s: float = 0.0
    demand_bytes: int = 0
    ahead_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """The share that had not to be fetched when it was asked for; 1 while nothing was."""
        asked = self.num_hits + self.num_early + self.num_misses
        return 1.0 if not asked else (self.num_hits + self.num_early) / asked

    def since(self, earlier: "ExpertCounts") -> "ExpertCounts":
        """What came after."""
        return ExpertCounts(*(getattr(self, name) - getattr(earlier, name) for name in self.__slots__))
