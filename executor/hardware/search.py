"""The search of `headrace tune`: which slots and step tokens to measure next, and whether what was measured is better.

Pure. A plain climb: from the table's values, one of the two at a time is doubled or halved, then moved by half; what
is better in pairs of alternating runs becomes the next start. Times on a shared machine move from run to run, so only
pairs are compared, and a gain counts only if every pair shows one and the median is no less than LEAST_GAIN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

LEAST_GAIN = 0.03
_FACTORS = (2.0, 0.5, 1.5, 0.75)
_STEP_MULTIPLE = 64


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What an executor would be given."""

    num_slots: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Output tokens a second of the best so far and of the candidate, one run each, one after the other."""

    best: float
    candidate: float

    @property
    def ratio(self) -> float:
        return self.candidate / self.best if self.best else 0.0


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate beside the best of its time."""

    best: Setting
    candidate: Setting
    pairs: tuple[Pair, ...]
    better: bool

    @property
    def gain(self) -> float:
        return median(pair.ratio for pair in self.pairs) - 1


@dataclass(slots=True)
class Search:
    """Ask `candidate`, measure, `tell`; None ends it. `most_slots` is how many sequences there are to run at once."""

    start: Setting
    most_slots: int
    most_step_tokens: int
    budget: int
    tried: list[Tried] = field(default_factory=list)

    @property
    def best(self) -> Setting:
        return next((each.candidate for each in reversed(self.tried) if each.better), self.start)

    def candidate(self) -> Setting | None:
        """The next that has not been tried beside anything, within `budget` trials in all."""
        if len(self.tried) >= self.budget:
            return None
        seen = {self.start, *(each.candidate for each in self.tried)}
        return next((each for each in self._around(self.best) if each not in seen), None)

    def tell(self, candidate: Setting, pairs: Sequence[Pair]) -> Tried:
        """Raises ValueError without a pair."""
        if not pairs:
            raise ValueError("a candidate is judged by at least one pair")
        tried = Tried(self.best, candidate, tuple(pairs), is_better(pairs))
        self.tried.append(tried)
        return tried

    def _around(self, setting: Setting) -> list[Setting]:
        """Both values in turn, coarse before fine; in bounds, with room for a prompt beside a decode in every slot."""
        found = []
        for factor in _FACTORS:
            step_tokens = max(_STEP_MULTIPLE, round(setting.step_tokens * factor / _STEP_MULTIPLE) * _STEP_MULTIPLE)
            found.append(Setting(setting.num_slots, min(step_tokens, self.most_step_tokens)))
            found.append(Setting(max(1, min(round(setting.num_slots * factor), self.most_slots)), setting.step_tokens))
        return [each for each in found if each.step_tokens >= each.num_slots + 2]


def is_better(pairs: Sequence[Pair]) -> bool:
    ratios = [pair.ratio for pair in pairs]
    return min(ratios) > 1 and median(ratios) >= 1 + LEAST_GAIN


def promising(pairs: Sequence[Pair]) -> bool:
    """Whether a further pair could still make it better: one that shows no gain settles it."""
    return all(pair.ratio > 1 for pair in pairs)
