"""Optimisation profiles out of the ladder of buckets: one profile a bucket of lengths. Pure.

A profile says of every input the least, the usual and the greatest shape. Within one the kernels are tuned for the
usual shape, so each bucket has its own, whose usual shape is its greatest: batches are padded to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.core.errors import InvalidRequest

ROWS, TOKENS = "rows", "tokens"
_ROLES = dict.fromkeys(("batch", "batch_size", "b", "n", "rows"), ROWS)
_ROLES |= dict.fromkeys(("sequence", "sequence_length", "seq", "seq_len", "s", "t", "length", "tokens"), TOKENS)
"""What axes are called, in lower case."""
MOST_PROFILES = 16

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]
"""By input: least, usual and greatest shape."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """At most `rows` rows, and the greatest length of each bucket, ascending."""

    rows: int
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        ascending = all(low < high for low, high in pairwise(self.lengths))
        if self.rows < 1 or not self.lengths or self.lengths[0] < 1 or not ascending:
            raise InvalidRequest(
                f"{self.rows} rows of {list(self.lengths)} tokens are no ladder of buckets",
                field="lengths",
                limit="at least 1, ascending",
            )
        if len(self.lengths) > MOST_PROFILES:
            raise InvalidRequest(
                f"{len(self.lengths)} buckets are over {MOST_PROFILES} profiles",
                field="lengths",
                limit=f"<= {MOST_PROFILES} lengths",
            )


def power_ladder(rows: int, align_tokens: int, context_tokens: int) -> Ladder:
    """Lengths double from the alignment on, up to the context."""
    lengths: list[int] = []
    length = align_tokens
    while length < context_tokens:
        lengths.append(length)
        length *= 2
    return Ladder(rows, (*lengths, context_tokens))


def profiles(
    inputs: Sequence[tuple[str, tuple[int | str, ...]]], ladder: Ladder, axes: Mapping[str, str] | None = None
) -> list[Profile]:
    """`inputs` are names and shapes, dynamic axes by their names. `axes` says of further ones what they are: rows,
    tokens, or a number. Raises InvalidRequest for an axis that nothing is known of."""
    bounds = [0, *ladder.lengths]
    return [
        {name: _shapes(name, shape, ladder.rows, low + 1, high, axes or {}) for name, shape in inputs}
        for low, high in pairwise(bounds)
    ]


def _shapes(
    name: str, shape: tuple[int | str, ...], rows: int, least: int, most: int, axes: Mapping[str, str]
) -> tuple[Shape, Shape, Shape]:
    ranges = [_range(name, axis, rows, least, most, axes) for axis in shape]
    low, high = tuple(each[0] for each in ranges), tuple(each[1] for each in ranges)
    return low, high, high


def _range(name: str, axis: int | str, rows: int, least: int, most: int, axes: Mapping[str, str]) -> tuple[int, int]:
    if isinstance(axis, int):
        return axis, axis
    role = axes.get(axis) or _ROLES.get(axis.lower(), "")
    if role == ROWS:
        return 1, rows
    if role == TOKENS:
        return least, most
    if role.isdigit() and int(role):
        return int(role), int(role)
    said = f"axis {axis!r}" if axis else "an axis without a name"
    raise InvalidRequest(
        f"input {name!r}: {said} is dynamic and no profile says its range",
        field="axis",
        limit="rows, tokens or a number",
    )
