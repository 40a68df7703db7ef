"""What is known of the lengths of one padded model's requests: their buckets, and how often each bucket gets one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.request import Precision
from headrace.scheduler.policy.admission import MOST
from headrace.scheduler.policy.buckets import AdaptiveBuckets, FixedBuckets, LengthBuckets, PowerOfTwoBuckets
from headrace.scheduler.policy.fill import Forming
from headrace.scheduler.policy.limits import BucketRule
from headrace.scheduler.policy.registry import Pool

_ROWS_ARE_FREE = Forming(batch=1, window=0)
"""An incomplete batch computes its members' rows only, so that padding is all that edges can save."""
_FORGET = 0.1


@dataclass(frozen=True, slots=True)
class Grid:
    """What buckets are made from, in tokens."""

    rule: BucketRule
    align_tokens: int
    longest: int
    packs: bool = False


@dataclass(slots=True)
class _Rate:
    last_at: float
    gap_s: float | None = None


@dataclass(slots=True)
class Lengths:
    """Of one model in one precision. `version` is another object once buckets have changed. Times in seconds."""

    grid: Grid
    version: object = field(default_factory=object)
    _rates: dict[int, _Rate] = field(default_factory=dict)
    _buckets: LengthBuckets = field(init=False)

    def __post_init__(self) -> None:
        self._buckets = _buckets(self.grid)

    def bucket_of(self, length: int) -> int:
        """Of any length: one outside the model's is taken as the nearest. All have one where rows are packed."""
        if self.grid.packs:
            return self.grid.longest
        return self._buckets.bucket_of(self._within(length))

    def padded_length(self, lengths: Sequence[int]) -> int:
        """Tokens of each row of a batch of these, all of one bucket, one a row."""
        within = [self._within(length) for length in lengths]
        return self._buckets.padded_length([max(within)] if self.grid.packs else within)

    def arrived(self, length: int, now: float) -> None:
        """Counts an arrival."""
        bucket = self.bucket_of(length)
        rate = self._rates.get(bucket)
        if rate is None:
            self._rates[bucket] = _Rate(now)
        else:
            gap_s = now - rate.last_at
            rate.gap_s = gap_s if rate.gap_s is None else rate.gap_s + _FORGET * (gap_s - rate.gap_s)
            rate.last_at = now
        if self._buckets.observe(self._within(length)):
            self.version = object()
            self._rates.clear()  # they were of other buckets

    def expected(self, bucket: int, now: float, until: float) -> float:
        """How many of the bucket will likely come between; none while fewer than two have."""
        rate = self._rates.get(bucket)
        if rate is None or rate.gap_s is None:
            return 0.0
        return (until - now) / max(rate.gap_s, now - rate.last_at, 1e-6)

    def _within(self, length: int) -> int:
        return min(max(length, 1), self.grid.longest)


def lengths_of(
    known: dict[tuple[str, Precision], Lengths], model: str, precision: Precision, pool: Pool, rule: BucketRule
) -> Lengths:
    """What is known of the model's lengths; nothing, where its executors or the rule have changed."""
    padding = next(iter(pool.members.values())).padding_of(model)
    grid = Grid(
        rule,
        align_tokens=padding.align_tokens if padding else 1,
        longest=min(max(1, *(context for _, context in pool.shapes)), MOST),
        packs=padding is not None and padding.packs,
    )
    lengths = known.get((model, precision))
    if lengths is None or lengths.grid != grid:
        lengths = known[model, precision] = Lengths(grid)
    return lengths


def _buckets(grid: Grid) -> LengthBuckets:
    match grid.rule:
        case BucketRule.FIXED32:
            return FixedBuckets(grid.align_tokens)
        case BucketRule.POWER_OF_TWO:
            return PowerOfTwoBuckets(grid.align_tokens)
        case BucketRule.ADAPTIVE:
            return AdaptiveBuckets(grid.align_tokens, grid.longest, _ROWS_ARE_FREE)
