"""Where edges between length buckets should be: optimal partitions of a histogram of lengths, as pure functions.

A request of a bucket is padded to the bucket's upper edge, so a bucket costs its edge times the requests in it.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from headrace.core.errors import InvalidRequest
from headrace.core.packing import rounded_up

RowsPerRequest = Callable[[float], float]
"""Rows computed for each real one in a bucket that gets this share of the requests: at least 1."""


def optimal_edges(weights: Mapping[int, float], num_buckets: int, align: int, longest: int) -> tuple[int, ...]:
    """At most `num_buckets` upper edges, multiples of `align`, ascending, the last the least multiple >= `longest`.

    They minimise the expected padding of lengths (tokens) with these weights. Of c distinct lengths and k buckets in
    O(k c log c): with this cost the last cut moves right as the end does (the quadrangle inequality: edges rise), so
    each layer is filled by divide and conquer. Raises InvalidRequest for lengths outside 1..longest or no bucket.
    """
    if num_buckets < 1:
        raise InvalidRequest(f"{num_buckets} buckets", field="num_buckets")
    bounds, mass = _cells(weights, align, longest)
    costs = [0.0] + [math.inf] * len(bounds)  # of the first n cells, in the layers so far
    layers: list[list[int]] = []
    for _ in range(min(num_buckets, len(bounds))):
        before, costs = costs, [0.0] + [math.inf] * len(bounds)
        cuts = [0] * len(costs)
        _fill_layer(before, costs, cuts, bounds, mass, (1, len(bounds)), (0, len(bounds) - 1))
        layers.append(cuts)
    return _edges(bounds, reversed(layers))


def free_edges(
    weights: Mapping[int, float], align: int, longest: int, rows_per_request: RowsPerRequest
) -> tuple[int, ...]:
    """As many edges as cost least when empty rows of incomplete batches count too: more buckets fill more slowly.

    Rows bend the cost, and the quadrangle inequality no longer holds: all O(c^2) buckets are tried, once each.
    """
    bounds, mass = _cells(weights, align, longest)
    costs, cuts = [0.0], [0]
    for end, edge in enumerate(bounds, start=1):
        cost, start = min((costs[i] + _cost(edge, mass[end] - mass[i], rows_per_request), i) for i in range(end))
        costs.append(cost)
        cuts.append(start)
    return _edges(bounds, (cuts for _ in bounds))


def padded_tokens(
    weights: Mapping[int, float], edges: Sequence[int], rows_per_request: RowsPerRequest = lambda share: 1.0
) -> float:
    """Expected tokens computed for one request of these weights: its edge, and its part of its batch's empty rows."""
    total = sum(weights.values())
    shares = [0.0] * len(edges)
    for length, weight in weights.items():
        shares[bisect_left(edges, length)] += weight / total
    return sum(_cost(edge, share, rows_per_request) for edge, share in zip(edges, shares, strict=True))


def _cost(edge: int, share: float, rows_per_request: RowsPerRequest) -> float:
    return edge * share * rows_per_request(share)


def _cells(weights: Mapping[int, float], align: int, longest: int) -> tuple[list[int], list[float]]:
    """Distinct aligned lengths, the longest always among them; and the share of requests up to each, from 0 on."""
    if align < 1 or longest < 1 or any(not 1 <= length <= rounded_up(longest, align) for length in weights):
        raise InvalidRequest(f"lengths outside 1..{longest}, or {align=} below 1", field="longest")
    last = rounded_up(longest, align)
    cells = {last: 0.0}
    for length, weight in weights.items():
        cell = rounded_up(length, align)
        cells[cell] = cells.get(cell, 0.0) + weight
    bounds = sorted(cells)
    total = sum(cells.values()) or 1.0
    return bounds, list(accumulate((cells[bound] / total for bound in bounds), initial=0.0))


def _fill_layer(
    before: Sequence[float],
    costs: list[float],
    cuts: list[int],
    bounds: Sequence[int],
    mass: Sequence[float],
    ends: tuple[int, int],
    starts: tuple[int, int],
) -> None:
    """Costs and last cuts for all `ends`, whose best cuts are known to lie within `starts`; both inclusive."""
    low, high = ends
    if low > high:
        return
    end = (low + high) // 2
    edge = bounds[end - 1]
    costs[end], cuts[end] = min(
        (before[i] + edge * (mass[end] - mass[i]), i) for i in range(starts[0], min(end - 1, starts[1]) + 1)
    )
    _fill_layer(before, costs, cuts, bounds, mass, (low, end - 1), (starts[0], cuts[end]))
    _fill_layer(before, costs, cuts, bounds, mass, (end + 1, high), (cuts[end], starts[1]))


def _edges(bounds: Sequence[int], cuts_by_bucket: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Follows the cuts from the last bucket to the first; stops where nothing is left to its left."""
    edges: list[int] = []
    end = len(bounds)
    for cuts in cuts_by_bucket:
        edges.append(bounds[end - 1])
        end = cuts[end]
        if end == 0:
            break
    return tuple(reversed(edges))
