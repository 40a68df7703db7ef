"""Virtual time: a heap of what happens when. Equal inputs, equal order; the wall clock is never read."""

import heapq
import itertools
from collections.abc import Callable
from enum import IntEnum

Action = Callable[[], None]


class Phase(IntEnum):
    """Of what happens at the same instant: what is received, then the scheduler's turn on it, then engines' steps."""

    MESSAGE = 0
    TURN = 1
    BOUNDARY = 2


class Clock:
    """`now` in seconds from the start of the run."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, Phase, int, Action]] = []
        self._numbers = itertools.count()

    def at(self, time_s: float, action: Action, phase: Phase = Phase.MESSAGE) -> None:
        """Plans the action; a time that has passed is now. At one instant: by phase, then as they were planned."""
        heapq.heappush(self._heap, (max(time_s, self.now), phase, next(self._numbers), action))

    def after(self, delay_s: float, action: Action, phase: Phase = Phase.MESSAGE) -> None:
        self.at(self.now + delay_s, action, phase)

    def advance(self) -> bool:
        """Does what is next; False where nothing is planned."""
        if not self._heap:
            return False
        self.now, _, _, action = heapq.heappop(self._heap)
        action()
        return True
