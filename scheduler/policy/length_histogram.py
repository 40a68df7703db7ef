"""How long requests are, lately: a histogram that forgets, in a bounded number of cells. Knows nothing of buckets."""

from collections.abc import Mapping

from headrace.core.errors import InvalidRequest
from headrace.core.packing import rounded_up

MAX_CELLS = 512
"""Beyond it cells become wider, so that memory and the time of a refit stay bounded for any longest length."""
_RESCALE_AT = 2.0**200


class Histogram:
    """Weights of lengths rounded up to cells; an observation's weight halves with every `half_life` that follow it.

    A cell is `align` tokens wide, or the least multiple of it with which MAX_CELLS reach up to `longest`.
    """

    def __init__(self, align: int, longest: int, half_life: float) -> None:
        """Tokens, tokens, observations. Raises InvalidRequest unless all are positive."""
        if align < 1 or longest < 1 or not half_life > 0:
            raise InvalidRequest(f"a histogram of {align=}, {longest=}, {half_life=} has no cells", field="align")
        self.cell_tokens = align * -(-longest // (align * MAX_CELLS))
        self._longest, self._last = longest, rounded_up(longest, align)
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0  # of the next observation: newer ones grow, in place of all older ones shrinking
        self._cells: dict[int, float] = {}
        self._total = self._tokens = 0.0

    def observe(self, length: int) -> None:
        """Counts one request. Raises InvalidRequest for a length outside 1..longest."""
        checked(length, self._longest)
        cell = min(rounded_up(length, self.cell_tokens), self._last)
        self._cells[cell] = self._cells.get(cell, 0.0) + self._weight
        self._total += self._weight
        self._tokens += self._weight * length
        self._weight *= self._growth
        if self._weight > _RESCALE_AT:
            self._rescale()

    @property
    def weights(self) -> Mapping[int, float]:
        """Weight by upper bound of the cell in tokens; their scale means nothing."""
        return self._cells

    @property
    def mean_tokens(self) -> float:
        """The weighted mean of the lengths themselves; 0 before the first."""
        return self._tokens / self._total if self._total else 0.0

    def _rescale(self) -> None:
        """All weights relative to the newest; cells that no longer count for anything go."""
        scale = 1.0 / self._weight
        self._cells = {cell: weight * scale for cell, weight in self._cells.items() if weight * scale > 1e-12}
        self._total, self._tokens, self._weight = self._total * scale, self._tokens * scale, 1.0


def checked(length: int, longest: int) -> int:
    """The length. Raises InvalidRequest outside 1..longest."""
    if not 1 <= length <= longest:
        raise InvalidRequest(f"a length of {length} tokens is outside 1..{longest}", field="length")
    return length
