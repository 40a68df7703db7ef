"""Packed rows: by hand, and whatever the lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.packing import OpenRows, best_fill, computed_tokens, fill, pack, rounded_up

LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=40)
ROW_TOKENS = st.integers(64, 200)
ROWS = st.integers(1, 8)


def sums(lengths: list[int], rows: tuple[tuple[int, ...], ...] | list[list[int]]) -> list[int]:
    return [sum(lengths[index] for index in row) for row in rows]


def test_the_longest_come_first_and_each_goes_where_it_fits_best() -> None:
    assert pack([10, 60, 40, 20, 30], 64, 4) == ((1,), (2, 3), (4, 0))
    assert pack([4, 30, 60], 64, 2) == ((2, 0), (1,))


def test_who_fits_nowhere_is_left_out() -> None:
    assert pack([65, 64, 1, 64], 64, 2) == ((1,), (3,))


def test_a_fill_keeps_the_order_and_then_takes_the_longest_that_fits() -> None:
    # 30 leads, 50 has a row of its own, 40 fits nowhere: of 10, 34 and 14 the longest first
    assert fill([30, 50, 40, 10, 34, 14], 64, 2).rows == [[0, 4], [1, 5]]


def test_the_row_length_that_wastes_least_is_taken() -> None:
    filled, waste = best_fill([41, 41, 41, 41, 41, 41, 5], [64, 128, 256], 2, 8)
    # rows of 48 or 64 would hold one each, of 128 three, of 256 six in one
    assert (filled.rows, filled.row_tokens) == ([[0, 1, 2, 6], [3, 4, 5]], 128)
    assert waste == pytest.approx(1 - 251 / 256)
    assert computed_tokens(filled, 8, all_rows=True) == 256


def test_a_row_length_that_holds_nobody_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        best_fill([65], [64], 2, 8)


@given(LENGTHS, ROW_TOKENS, ROWS)
def test_packing_loses_nobody_and_no_row_is_too_long(lengths: list[int], row_tokens: int, num_rows: int) -> None:
    rows = pack(lengths, row_tokens, num_rows)
    placed = [index for row in rows for index in row]
    assert len(rows) <= num_rows
    assert len(placed) == len(set(placed))
    assert all(total <= row_tokens for total in sums(lengths, rows))
    left_out = set(range(len(lengths))) - set(placed)
    if left_out:
        assert len(rows) == num_rows
        room = row_tokens - min(sums(lengths, rows))
        assert all(lengths[index] > room for index in left_out)
    assert len({index for row in pack(lengths, row_tokens, len(lengths)) for index in row}) == len(lengths)


@given(LENGTHS, ROW_TOKENS, ROWS)
def test_a_fill_has_its_leader_and_leaves_nobody_out_who_would_fit(
    lengths: list[int], row_tokens: int, num_rows: int
) -> None:
    filled = fill(lengths, row_tokens, num_rows)
    placed = {index for row in filled.rows for index in row}
    assert filled.rows[0][0] == 0
    assert filled.real_tokens == sum(lengths[index] for index in placed)
    assert filled.longest_tokens == max(sums(lengths, filled.rows))
    for index in set(range(len(lengths))) - placed:
        assert not filled.fits(lengths[index])
        assert not OpenRows(row_tokens, 0).add(index, lengths[index])


@given(LENGTHS, ROWS)
def test_the_best_fill_wastes_no_more_than_one_text_a_row(lengths: list[int], num_rows: int) -> None:
    first = lengths[:num_rows]
    unpacked = 1 - sum(first) / (num_rows * rounded_up(max(first), 8))
    filled, waste = best_fill(lengths, [8, 16, 32, 64, 128], num_rows, 8)
    assert waste <= unpacked + 1e-12
    assert filled.rows[0][0] == 0
