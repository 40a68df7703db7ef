"""How long steps that only decode usually take, by shape: so that a device that has become slower is seen. Pure.

A shape is the number of rows and the length of context that they read, within a factor of the square root of two. What
is usual follows faster steps soon and slower ones late: it stays near what the device can do, and a device that stays
slow is told from its own past for some hundreds of steps of a shape.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

FIRST_STEPS = 8
"""Of a shape, before anything is usual; the mean of these comes first."""
FASTER, SLOWER = 1 / 16, 1 / 256
MOST_SHAPES = 4_096


@dataclass(slots=True)
class _Usual:
    num_steps: int = 0
    took_s: float = 0.0


class UsualSteps:
    """Of one engine."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[tuple[int, int], _Usual] = OrderedDict()

    def observe(self, num_rows: int, context_tokens: int, took_s: float) -> float:
        """Seconds that such a step has usually taken up to now; `took_s` itself while that is not known."""
        shape = num_rows, int(2 * math.log2(max(1, context_tokens)))
        usual = self._shapes.setdefault(shape, _Usual())
        self._shapes.move_to_end(shape)
        if len(self._shapes) > MOST_SHAPES:
            self._shapes.popitem(last=False)
        usual.num_steps += 1
        if usual.num_steps <= FIRST_STEPS:
            usual.took_s += (took_s - usual.took_s) / usual.num_steps
            return took_s
        before_s = usual.took_s
        usual.took_s += (took_s - before_s) * (FASTER if took_s < before_s else SLOWER)
        return before_s
