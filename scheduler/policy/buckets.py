"""Length buckets for engines that pad: who may share a batch, and how long its rows then are.

Ours, `AdaptiveBuckets`, and two published rules to compare with behind one interface. A padded length must come from
the text's own length: at another padded length its vector moves, so what is neighbours' must not decide it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from headrace.core.errors import InvalidRequest
from headrace.core.packing import rounded_up
from headrace.scheduler.policy.fill import Forming
from headrace.scheduler.policy.length_histogram import Histogram, checked
from headrace.scheduler.policy.partition import free_edges, optimal_edges, padded_tokens

MAX_EDGES = 64
"""Each edge is a shape to compile and keep. Incomplete batches, not this, are what limits the number in practice."""


class LengthBuckets(Protocol):
    """A rule that groups requests by length. Lengths are tokens."""

    def bucket_of(self, length: int) -> int:
        """Requests with the same bucket may share a batch. Longer ones never have a lower bucket."""
        ...

    def padded_length(self, lengths: Sequence[int]) -> int:
        """Tokens of each row of a batch with these members, all of one bucket."""
        ...

    def observe(self, length: int) -> bool:
        """Tells of an arrival. True: buckets have changed, and what waits is to be grouped again."""
        ...


class AdaptiveBuckets:
    """Edges that follow the lengths seen, and to which members are padded, whoever their neighbours are.

    They start as powers of two, from `align` to `longest`. After every `refit_every` observations they are fitted to
    the histogram, and taken if the expected padded tokens fall by more than `min_gain`, a share of 1, so that noise
    changes nothing. With `forming` of fixed row shapes the fit weighs padding against rows left empty, and its number
    of edges follows; else padding alone counts, and all `max_edges` are used.

    A new fit moves the padded length of some texts: who needs one vector for a text for ever keeps one fit's edges.
    """

    def __init__(
        self,
        align: int,
        longest: int,
        forming: Forming,
        *,
        max_edges: int = MAX_EDGES,
        refit_every: int = 256,
        half_life: float = 4096.0,
        min_gain: float = 0.002,
    ) -> None:
        """Raises InvalidRequest where a setting is out of range, or powers of two alone need more than `max_edges`."""
        self._histogram = Histogram(align, longest, half_life)
        self._align, self._longest, self._forming = align, longest, forming
        self._max_edges, self._refit_every, self._min_gain = max_edges, refit_every, min_gain
        self._since_fit = 0
        self._edges = doubling_edges(align, longest)
        if refit_every < 1 or not 0 <= min_gain < 1 or len(self._edges) > max_edges:
            raise InvalidRequest(f"{refit_every=}, {min_gain=} or {max_edges=} is out of range", field="buckets")

    @property
    def edges(self) -> tuple[int, ...]:
        """Upper bounds in tokens, ascending multiples of `align`; the last holds the longest."""
        return self._edges

    @property
    def expected_waste(self) -> float:
        """Share of computed tokens that are padding, were the lengths to go on as seen; 0 before the first."""
        mean = self._histogram.mean_tokens
        return 1.0 - mean / self._padded(self._edges) if mean else 0.0

    def bucket_of(self, length: int) -> int:
        """The edge to which a request of this length is padded. Raises InvalidRequest outside 1..longest."""
        return self._edges[bisect_left(self._edges, checked(length, self._longest))]

    def padded_length(self, lengths: Sequence[int]) -> int:
        """The bucket's edge: the same for any members."""
        return self.bucket_of(lengths[0])

    def observe(self, length: int) -> bool:
        """Counts an arrival; True where that led to other edges. Raises InvalidRequest outside 1..longest."""
        self._histogram.observe(length)
        self._since_fit += 1
        if self._since_fit < self._refit_every:
            return False
        self._since_fit = 0
        fitted = self._fitted()
        if self._padded(fitted) >= self._padded(self._edges) * (1.0 - self._min_gain):
            return False
        self._edges = fitted
        return True

    def _fitted(self) -> tuple[int, ...]:
        weights = self._histogram.weights
        if self._forming.row_shapes:
            edges = free_edges(weights, self._align, self._longest, self._forming.rows_per_request)
            if len(edges) <= self._max_edges:
                return edges
        # So many edges are wanted only where even small buckets fill, and then padding alone is the cost.
        return optimal_edges(weights, self._max_edges, self._align, self._longest)

    def _padded(self, edges: Sequence[int]) -> float:
        return padded_tokens(self._histogram.weights, edges, self._forming.rows_per_request)


class FixedBuckets:
    """The published fixed rule: bucket ceil(n / 32), for ever.

    It only groups, and says nothing of the padded length. So a batch is accounted at its longest member rounded up to
    the engine's `align`, the least that the engine can compute: in the rule's favour, and at the price that the
    neighbours decide the padded length wherever `align` is finer than a bucket. The account's own 38 % waste is on
    traffic that is not published; what the rule wastes here is measured here.
    """

    def __init__(self, align: int, width: int = 32) -> None:
        self._align, self._width = align, width

    def bucket_of(self, length: int) -> int:
        return -(-length // self._width)

    def padded_length(self, lengths: Sequence[int]) -> int:
        return rounded_up(max(lengths), self._align)

    def observe(self, length: int) -> bool:
        return False


class PowerOfTwoBuckets:
    """The published rule of powers of two: size = max(32, 2^floor(log2 n)), bucket n // size * size.

    For n >= 32 that is the power of two at or below n, for shorter ones 0. It too only groups, and its bucket is a
    lower bound, to which nothing can be padded; a batch is accounted as with `FixedBuckets`, at its longest member
    rounded up to `align`, which is in the rule's favour: padding to the next power of two would cost more.
    """

    def __init__(self, align: int) -> None:
        self._align = align

    def bucket_of(self, length: int) -> int:
        size = max(32, 1 << (length.bit_length() - 1))
        return length // size * size

    def padded_length(self, lengths: Sequence[int]) -> int:
        return rounded_up(max(lengths), self._align)

    def observe(self, length: int) -> bool:
        return False


def doubling_edges(align: int, longest: int) -> tuple[int, ...]:
    """`align`, twice it, and so on, up to the least multiple of `align` that holds the longest."""
    last = rounded_up(longest, align)
    edges = []
    edge = align
    while edge < last:
        edges.append(edge)
        edge *= 2
    return (*edges, last)
