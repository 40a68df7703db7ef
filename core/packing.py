"""Several texts in one row of a padded batch: who shares a row, and how long rows should be. Pure arithmetic.

A row of a packed batch holds whole texts one after the other, told apart by an attention mask, as in training without
padding (Krell and others, 2021, arXiv:2107.02027). Placing is best fit: each text goes into the row that it fills best.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from headrace.core.errors import InvalidRequest

FULL_WASTE = 0.03
"""A packed batch is full when no more than this share of its rows is padding: waiting for a better fit gains less."""

Row = tuple[int, ...]
"""Texts of one row by their place in the sequence that was packed."""


class OpenRows:
    """At most `num_rows` rows of `row_tokens` that take texts while they fit."""

    def __init__(self, row_tokens: int, num_rows: int) -> None:
        self.row_tokens, self.num_rows = row_tokens, num_rows
        self.rows: list[list[int]] = []
        self.real_tokens = 0
        self._left: list[tuple[int, int]] = []  # (tokens left, row), ascending

    def add(self, index: int, length: int) -> bool:
        """Puts the text into the fullest row that has room, else into a new one. False: it fits nowhere."""
        at = bisect_left(self._left, (length, -1))
        if at < len(self._left):
            left, row = self._left.pop(at)
            self.rows[row].append(index)
        elif len(self.rows) < self.num_rows and length <= self.row_tokens:
            left, row = self.row_tokens, len(self.rows)
            self.rows.append([index])
        else:
            return False
        self.real_tokens += length
        insort(self._left, (left - length, row))
        return True

    def fits(self, length: int) -> bool:
        """Whether `add` would take a text of this length."""
        if length <= self.row_tokens and len(self.rows) < self.num_rows:
            return True
        return bool(self._left) and length <= self._left[-1][0]

    @property
    def longest_tokens(self) -> int:
        """Of the fullest row; 0 while there is none."""
        return self.row_tokens - self._left[0][0] if self._left else 0


def pack(lengths: Sequence[int], row_tokens: int, num_rows: int) -> tuple[Row, ...]:
    """Best fit, the longest first (at most 11/9 of the rows that are needed, and 6/9). Who fits nowhere is left out."""
    open_rows = OpenRows(row_tokens, num_rows)
    for index in longest_first(lengths, range(len(lengths))):
        open_rows.add(index, lengths[index])
    return tuple(map(tuple, open_rows.rows))


def longest_first(lengths: Sequence[int], indices: Iterable[int]) -> list[int]:
    return sorted(indices, key=lambda index: -lengths[index])


def fill(lengths: Sequence[int], row_tokens: int, num_rows: int) -> OpenRows:
    """A batch from those that wait: in their order until one fits nowhere, then the longest of the others that fit."""
    open_rows = OpenRows(row_tokens, num_rows)
    index = 0
    while index < len(lengths) and open_rows.add(index, lengths[index]):
        index += 1
    for other in longest_first(lengths, range(index + 1, len(lengths))):
        open_rows.add(other, lengths[other])
    return open_rows


def computed_tokens(filled: OpenRows, align: int, *, all_rows: bool) -> int:
    """What the engine computes: its rows, or all that it could have, as long as the fullest, rounded up."""
    num_rows = filled.num_rows if all_rows else len(filled.rows)
    return num_rows * rounded_up(filled.longest_tokens, align)


def best_fill(lengths: Sequence[int], options: Sequence[int], num_rows: int, align: int) -> tuple[OpenRows, float]:
    """The batch of those that wait, the first of them leading, whose row length wastes least, and its waste.

    `options` are row lengths, multiples of `align`, ascending; the last is the limit. Rows as long as the first ones
    that come, one a row, are tried too, so that packing never wastes more. Waste is the share of padding, in all rows:
    a batch that leaves rows empty is no good one. Raises InvalidRequest where the first is longer than the limit.
    """
    if not options or lengths[0] > options[-1]:
        raise InvalidRequest(f"a text of {lengths[0]} tokens fits in no row", field="length")
    alone = min(rounded_up(max(lengths[:num_rows]), align), options[-1])
    fills = [fill(lengths, each, num_rows) for each in sorted({*options, alone}) if each >= lengths[0]]
    return min(((each, _waste(each, align)) for each in fills), key=lambda pair: pair[1])


def rounded_up(length: int, multiple: int) -> int:
    """The least multiple that is no less than the length."""
    return -(-length // multiple) * multiple


def _waste(filled: OpenRows, align: int) -> float:
    return 1.0 - filled.real_tokens / computed_tokens(filled, align, all_rows=True)
