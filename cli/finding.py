"""What `headrace doctor` says of one bottleneck."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A bottleneck by name, the figures that show it, what to do next."""

    name: str
    evidence: str
    next_step: str
