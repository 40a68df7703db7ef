"""How far an answer is that goes on without its call."""

from enum import IntEnum


class ResultState(IntEnum):
    """LOST: its gateway went away. Values equal those on the wire."""

    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    LOST = 4
