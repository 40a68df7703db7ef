"""What a screen says of a text, and what is done about it."""

from dataclasses import dataclass
from enum import StrEnum


class ScreenPolicy(StrEnum):
    """BLOCK refuses what is found, FLAG lets it pass and says so, OFF does not look."""

    OFF = "off"
    FLAG = "flag"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`category` is '' where nothing was found; `score` is the calibrated probability of the likeliest category."""

    category: str
    score: float
    model: str


def worst(verdicts: list[Verdict]) -> Verdict:
    """The one that counts for a whole of several parts: found before not found, then by score."""
    return max(verdicts, key=lambda verdict: (bool(verdict.category), verdict.score))
