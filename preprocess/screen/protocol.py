"""What a screen must be: `split` a text into windows, `judge` windows. A package offers one by an entry point.

Group `headrace.screens`; the entry point is a function of the models' repository and the number of threads that will
call the screen at once, which loads the screen. Raises ModelNotFound where what it needs is not installed.
"""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from headrace.core.screening import Verdict
from headrace.models.repository import Repository

Window = TypeVar("Window")


class Screen(Protocol, Generic[Window]):
    """Called from several threads at once. A verdict must depend on its window only, not on its company."""

    @property
    def name(self) -> str:
        """Names the screen and its version in verdicts."""

    def split(self, text: str) -> Sequence[Window]:
        """The parts of a text that are judged one by one, at least one; the worst counts."""

    def judge(self, windows: Sequence[Window]) -> list[Verdict]:
        """One verdict a window, in order."""


LoadScreen = Callable[[Repository, int], Screen[object]]
