"""How full batches get that wait for company in their bucket only for so long: what an incomplete one costs in rows."""

import math
from dataclasses import dataclass, field

from headrace.core.errors import InvalidRequest

_STEPS = 16
"""Points of the table for each expected arrival."""


@dataclass(frozen=True)
class Forming:
    """A batch goes with `batch` members, or when its oldest has waited for `window` further arrivals.

    `row_shapes` are the row counts that the engine is compiled for, ascending, the last one `batch`: an incomplete
    batch is padded with empty rows to the next of them. Without any, rows are free and only lengths are padded.
    Raises InvalidRequest where these do not fit each other.
    """

    batch: int
    window: int
    row_shapes: tuple[int, ...] = ()
    _table: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shapes = self.row_shapes
        if self.batch < 1 or self.window < 0 or (shapes and (shapes[-1] != self.batch or shapes[0] < 1)):
            raise InvalidRequest(
                f"no batches of {self.batch} after {self.window} arrivals in rows of {shapes}", field="rows"
            )
        if list(shapes) != sorted(set(shapes)):
            raise InvalidRequest(f"row shapes {shapes} do not ascend", field="rows")
        # Twice the batch plus six deviations: from there on, an incomplete batch does not happen.
        last = 2 * self.batch + math.ceil(6 * math.sqrt(2 * self.batch))
        table = tuple(self._exact(step / _STEPS) for step in range(last * _STEPS + 1)) if shapes else (1.0,)
        object.__setattr__(self, "_table", table)

    def rows(self, members: int) -> int:
        """Rows that the engine computes for a batch of so many members."""
        return next((shape for shape in self.row_shapes if shape >= members), members)

    def rows_per_request(self, share: float) -> float:
        """Expected rows over expected members, at least 1, in a bucket that gets this share of all arrivals."""
        return self._table[min(round(share * self.window * _STEPS), len(self._table) - 1)]

    def _exact(self, arrivals: float) -> float:
        """By the Poisson law: the first member opens the batch, `arrivals` more are expected in its window."""
        probability, left, members, rows = math.exp(-arrivals), 1.0, 0.0, 0.0
        for count in range(1, self.batch):  # count - 1 have come after the first
            members += probability * count
            rows += probability * self.rows(count)
            left -= probability
            probability *= arrivals / count
        return (rows + left * self.batch) / (members + left * self.batch)


def powers_of_two(batch: int) -> tuple[int, ...]:
    """The usual row shapes: 1, 2, 4 … and the batch itself."""
    return (*(1 << power for power in range((batch - 1).bit_length())), batch)
