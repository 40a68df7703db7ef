"""Length buckets: partitions against brute force, what is promised of edges, and the published rules by hand."""

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.scheduler.policy.buckets import AdaptiveBuckets, FixedBuckets, PowerOfTwoBuckets, doubling_edges
from headrace.scheduler.policy.fill import Forming, powers_of_two
from headrace.scheduler.policy.length_histogram import MAX_CELLS, Histogram
from headrace.scheduler.policy.partition import RowsPerRequest, free_edges, optimal_edges, padded_tokens

FREE_ROWS = Forming(16, 1024)
FULL_ROWS = Forming(16, 256, (16,))

Weights = st.dictionaries(st.integers(1, 96), st.integers(1, 50).map(float), min_size=1, max_size=12)


def cheapest(weights: dict[int, float], most: int, align: int, longest: int, rows: RowsPerRequest) -> float:
    """The least cost over every choice of up to `most` edges."""
    last = -(-longest // align) * align
    inner = range(align, last, align)
    choices = (chosen for size in range(most) for chosen in combinations(inner, size))
    return min(padded_tokens(weights, (*chosen, last), rows) for chosen in choices)


@settings(max_examples=150, deadline=None)
@given(weights=Weights, num_buckets=st.integers(1, 6), align=st.sampled_from([8, 12, 16]))
def test_optimal_edges_cost_what_the_best_of_all_choices_costs(
    weights: dict[int, float], num_buckets: int, align: int
) -> None:
    edges = optimal_edges(weights, num_buckets, align, 96)
    assert len(edges) <= num_buckets
    assert padded_tokens(weights, edges) == pytest.approx(cheapest(weights, num_buckets, align, 96, lambda share: 1.0))


@settings(max_examples=60, deadline=None)
@given(weights=Weights, window=st.integers(0, 400), shapes=st.sampled_from([(16,), powers_of_two(16), (4, 16)]))
def test_free_edges_cost_what_the_best_of_all_choices_costs(
    weights: dict[int, float], window: int, shapes: tuple[int, ...]
) -> None:
    rows = Forming(16, window, shapes).rows_per_request
    edges = free_edges(weights, 12, 96, rows)
    assert padded_tokens(weights, edges, rows) == pytest.approx(cheapest(weights, 8, 12, 96, rows))


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 1000), min_size=1, max_size=200),
    align=st.sampled_from([1, 16, 64, 100]),
    forming=st.sampled_from([FREE_ROWS, FULL_ROWS]),
)
def test_edges_are_ascending_multiples_and_buckets_monotone(lengths: list[int], align: int, forming: Forming) -> None:
    buckets = AdaptiveBuckets(align, 1000, forming, max_edges=12, refit_every=16, min_gain=0.0)
    for length in lengths:
        buckets.observe(length)
        edges = buckets.edges
        assert list(edges) == sorted(set(edges))
        assert len(edges) <= 12
        assert all(edge % align == 0 for edge in edges)
        assert edges[-1] == -(-1000 // align) * align
    found = [buckets.bucket_of(length) for length in range(1, 1001)]
    assert found == sorted(found)
    assert all(bucket >= length for length, bucket in enumerate(found, start=1))


def test_by_hand() -> None:
    # Nine texts of 64 and one of 640: one edge pads nine by 576, two pad nobody; the last must still hold 1,000.
    weights = {64: 9.0, 640: 1.0}
    assert optimal_edges(weights, 1, 64, 1000) == (1024,)
    assert optimal_edges(weights, 2, 64, 1000) == (64, 1024)
    assert optimal_edges(weights, 9, 64, 1000) == (64, 640, 1024)
    assert padded_tokens(weights, (64, 1024)) == pytest.approx(0.9 * 64 + 0.1 * 1024)


def test_starts_from_powers_of_two_and_then_follows_what_it_sees() -> None:
    buckets = AdaptiveBuckets(64, 1000, FREE_ROWS, refit_every=10)
    assert buckets.edges == (64, 128, 256, 512, 1024)
    changed = [buckets.observe(length) for length in [300, 310] * 5]
    assert changed == [False] * 9 + [True]
    assert buckets.bucket_of(300) == 320
    assert buckets.expected_waste == pytest.approx(1 - 305 / 320, rel=1e-3)  # the newest weigh a little more


@pytest.mark.parametrize("forming", [FREE_ROWS, FULL_ROWS])
def test_noise_changes_nothing_and_a_shift_does(forming: Forming) -> None:
    random_ = random.Random(3)

    def lengths(low: int, high: int, count: int) -> list[int]:
        return [random_.randint(low, high) for _ in range(count)]

    buckets = AdaptiveBuckets(64, 8192, forming, max_edges=8, min_gain=0.02)
    for length in lengths(1, 2000, 2048):
        buckets.observe(length)
    settled = buckets.edges
    assert not any(buckets.observe(length) for length in lengths(1, 2000, 4096))
    assert buckets.edges == settled
    assert any(buckets.observe(length) for length in lengths(4000, 6000, 4096))


def test_without_hysteresis_noise_does_change_edges() -> None:
    random_ = random.Random(3)
    buckets = AdaptiveBuckets(64, 8192, FREE_ROWS, max_edges=8, min_gain=0.0)
    changes = [buckets.observe(random_.randint(1, 2000)) for _ in range(6144)]
    assert sum(changes[2048:]) > 0


def test_rows_left_empty_make_buckets_fewer() -> None:
    weights = {64 * cell: 1.0 for cell in range(1, 129)}
    numbers = [
        len(free_edges(weights, 64, 8192, Forming(16, window, (16,)).rows_per_request))
        for window in (16, 256, 2048, 10**6)
    ]
    assert numbers == sorted(numbers)
    assert numbers[0] < 8
    assert numbers[-1] == 128


def test_the_ladder_is_bounded_where_more_edges_would_pay() -> None:
    random_ = random.Random(1)
    buckets = AdaptiveBuckets(64, 8192, Forming(16, 10**6, (16,)), max_edges=20)
    for _ in range(1024):
        buckets.observe(random_.randint(1, 8192))
    assert len(buckets.edges) == 20


def test_memory_is_bounded_and_old_lengths_are_forgotten() -> None:
    histogram = Histogram(1, 100_000, half_life=10)
    for length in range(1, 100_001, 7):
        histogram.observe(length)
    assert len(histogram.weights) <= MAX_CELLS
    for _ in range(20_000):  # far beyond what a float would hold of 2 ** (n / 10)
        histogram.observe(50)
    assert histogram.mean_tokens == pytest.approx(50)
    assert len(histogram.weights) == 1


def test_a_weight_halves_with_each_half_life() -> None:
    histogram = Histogram(64, 1024, half_life=4)
    histogram.observe(65)
    for _ in range(4):
        histogram.observe(1)
    newest = 2.0 ** (4 / 4)
    assert histogram.weights[128] == pytest.approx(newest / 2)
    assert sum(histogram.weights.values()) - 1.0 == pytest.approx(sum(2 ** (n / 4) for n in range(1, 5)))


def test_cells_of_an_odd_longest_stay_within_it() -> None:
    buckets = AdaptiveBuckets(1, 1001, FREE_ROWS, refit_every=1)  # cells are two tokens wide, the last bound is odd
    buckets.observe(1001)
    assert buckets.edges[-1] == 1001


def test_expected_rows() -> None:
    full = Forming(16, 100, (16,))
    assert full.rows_per_request(0.0) == pytest.approx(16)  # alone in its batch
    assert full.rows_per_request(1.0) == pytest.approx(1)
    assert Forming(16, 100, powers_of_two(16)).rows_per_request(0.0) == pytest.approx(1)
    assert FREE_ROWS.rows_per_request(0.001) == 1
    pair = Forming(2, 64, (2,))  # the window stays empty with probability 1/e: 2 rows for 1 + (1 - 1/e) members
    assert pair.rows_per_request(1 / 64) == pytest.approx(2 / (2 - 2.718281828**-1))
    shapes = Forming(16, 1, powers_of_two(16))
    assert [shapes.rows(members) for members in (1, 2, 3, 5, 9, 16)] == [1, 2, 4, 8, 16, 16]


def test_fixed_32_by_hand() -> None:
    rule = FixedBuckets(align=64)
    assert [rule.bucket_of(n) for n in (1, 32, 33, 64, 65)] == [1, 1, 2, 2, 3]
    assert [rule.padded_length(lengths) for lengths in ([1, 32], [33, 64], [65, 90])] == [64, 64, 128]


def test_power_of_two_by_hand() -> None:
    rule = PowerOfTwoBuckets(align=64)
    assert [rule.bucket_of(n) for n in (1, 31, 32, 63, 64, 127, 128, 1000, 1024)] == [
        0,
        0,
        32,
        32,
        64,
        64,
        128,
        512,
        1024,
    ]
    assert rule.padded_length([513, 600]) == 640
    assert rule.padded_length([513, 1000]) == 1024  # neighbours decide


def test_the_adaptive_padded_length_is_the_texts_own() -> None:
    buckets = AdaptiveBuckets(64, 1024, FREE_ROWS)
    assert buckets.padded_length([130, 140]) == buckets.padded_length([250, 140]) == buckets.bucket_of(140) == 256


@pytest.mark.parametrize("length", [0, -1, 1025])
def test_lengths_outside_are_refused(length: int) -> None:
    buckets = AdaptiveBuckets(64, 1024, FREE_ROWS)
    with pytest.raises(InvalidRequest):
        buckets.bucket_of(length)
    with pytest.raises(InvalidRequest):
        buckets.observe(length)
    with pytest.raises(InvalidRequest):
        optimal_edges({length: 1.0}, 2, 64, 1024)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        AdaptiveBuckets(64, 8192, FREE_ROWS, max_edges=3)
    with pytest.raises(InvalidRequest):
        AdaptiveBuckets(0, 8192, FREE_ROWS)
    with pytest.raises(InvalidRequest):
        Forming(16, 10, (8, 4, 16))
    with pytest.raises(InvalidRequest):
        Forming(16, 10, (8,))
    with pytest.raises(InvalidRequest):
        optimal_edges({64: 1.0}, 0, 64, 1024)


def test_doubling_edges_end_at_the_longest() -> None:
    assert doubling_edges(64, 300) == (64, 128, 256, 320)
    assert doubling_edges(64, 20) == (64,)
