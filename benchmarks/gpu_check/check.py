"""What a check is given, and what it says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.executor.cuda.device import CudaDevice

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a check moves: so that a fake device with little memory is enough for its logic.

    `arena_granules` of an arena, `copy_bytes` of one copy, `pressure_bytes` the most that is taken to fill the device;
    `random_steps` of mapping and releasing at random; `busy_bytes` are set again and again where work must last.
    """

    arena_granules: int = 2048
    copy_bytes: int = 256 << 20
    pressure_bytes: int = 1 << 40
    random_steps: int = 2000
    busy_bytes: int = 8 << 30


class Failed(Exception):
    """A check found what should not be: `what`, in one line."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True, slots=True)
class Outcome:
    """`passed` None: it could not be tried, `said` tells why."""

    name: str
    passed: bool | None
    seconds: float
    figures: Figures = field(default_factory=dict)
    said: str = ""


Check = Callable[[CudaDevice, Scale], Figures]
"""Returns what it measured. Raises Failed."""


def must(holds: bool, what: str) -> None:
    """Raises Failed where it does not hold."""
    if not holds:
        raise Failed(what)
