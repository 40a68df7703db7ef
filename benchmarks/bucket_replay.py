"""Replays arrivals through a bucketing rule, or packs them, and accounts what a padded engine would compute.

Time is arrivals.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from headrace.core.packing import FULL_WASTE, best_fill, computed_tokens
from headrace.scheduler.policy.buckets import LengthBuckets
from headrace.scheduler.policy.fill import Forming, powers_of_two


@dataclass(slots=True)
class Padding:
    """Tokens of all counted batches: the real ones, and what is computed for them under three accounts.

    `members`: only rows that hold a request, one a row where nothing is packed. `rows`: empty rows too, up to the next
    power of two. `full`: always as many rows as the largest batch.
    """

    real: int = 0
    members: int = 0
    rows: int = 0
    full: int = 0

    num_batches: int = 0
    num_incomplete: int = 0
    num_members: int = 0
    waits: list[int] = field(default_factory=list)
    """Arrivals that each measured request waited for."""

    @property
    def waste_members(self) -> float:
        """Shares of the tokens computed that are not real."""
        return 1.0 - self.real / self.members

    @property
    def waste_rows(self) -> float:
        return 1.0 - self.real / self.rows

    @property
    def waste_full(self) -> float:
        return 1.0 - self.real / self.full


@dataclass(frozen=True, slots=True)
class _Waiting:
    arrival: int
    length: int


def replay(lengths: Sequence[int], rule: LengthBuckets, forming: Forming) -> Padding:
    """Each arrival joins its bucket; a batch goes when full, or when its oldest has waited for `forming.window` more.

    The rule is told of an arrival only after that arrival has its bucket: nothing is known beforehand. After the last
    measured arrival the load goes on (the trace again, from its start) until the last measured request has left, and
    every batch whose oldest member is measured counts, with all its members.
    """
    queues: dict[int, list[_Waiting]] = {}
    arrivals: deque[_Waiting] = deque()  # those that have left are dropped once they come first
    left: set[int] = set()
    padding, row_shapes = Padding(), powers_of_two(forming.batch)

    def close(bucket: int, now: int) -> None:
        batch = queues.pop(bucket)
        left.update(member.arrival for member in batch)
        if batch[0].arrival >= len(lengths):
            return
        padded = rule.padded_length([member.length for member in batch])
        rows = next(shape for shape in row_shapes if shape >= len(batch))
        padding.real += sum(member.length for member in batch)
        padding.members += padded * len(batch)
        padding.rows += padded * rows
        padding.full += padded * forming.batch
        padding.num_batches += 1
        padding.num_incomplete += len(batch) < forming.batch
        padding.num_members += len(batch)
        padding.waits += [now - member.arrival for member in batch if member.arrival < len(lengths)]

    def join(member: _Waiting, now: int) -> None:
        bucket = rule.bucket_of(member.length)
        queue = queues.setdefault(bucket, [])
        queue.append(member)
        if len(queue) == forming.batch:
            close(bucket, now)

    for now, length in enumerate(cycle(lengths)):
        arrived = _Waiting(now, length)
        arrivals.append(arrived)
        join(arrived, now)
        while arrivals and (arrivals[0].arrival in left or now - arrivals[0].arrival >= forming.window):
            oldest = arrivals.popleft()
            if oldest.arrival not in left:
                close(rule.bucket_of(oldest.length), now)
            left.discard(oldest.arrival)
        if now >= len(lengths) - 1 and (not arrivals or arrivals[0].arrival >= len(lengths)):
            return padding
        if rule.observe(length):
            waiting = sorted((one for queue in queues.values() for one in queue), key=lambda one: one.arrival)
            queues.clear()
            for one in waiting:
                join(one, now)
    return padding


_LOOK_AGAIN = 1.05
"""Growth of what waits after which a packed batch that was not full is tried again."""


def replay_packed(lengths: Sequence[int], options: Sequence[int], forming: Forming, align: int) -> Padding:
    """Several requests share a row, whatever their lengths; rows are as long as one of `options`, which ascend.

    A batch goes when it is full (FULL_WASTE), or when the oldest that waits has waited for `forming.window` arrivals;
    the oldest leads, the others follow in order while they fit. Load goes on after the end, as in `replay`.
    """
    padding, row_shapes = Padding(), powers_of_two(forming.batch)
    waiting: list[_Waiting] = []
    tokens, look_at = 0, 0.0
    for now, length in enumerate(cycle(lengths)):
        waiting.append(_Waiting(now, length))
        tokens += length
        while waiting:
            late = now - waiting[0].arrival >= forming.window
            row_tokens = next(option for option in options if option >= waiting[0].length)
            if not late and tokens < max(look_at, forming.batch * row_tokens * (1 - FULL_WASTE)):
                break
            filled, waste = best_fill([each.length for each in waiting], options, forming.batch, align)
            if not late and waste > FULL_WASTE:
                look_at = tokens * _LOOK_AGAIN
                break
            places = {place for row in filled.rows for place in row}
            if waiting[0].arrival < len(lengths):
                computed = computed_tokens(filled, align, all_rows=False)
                padding.real += filled.real_tokens
                padding.members += computed
                shape = next(shape for shape in row_shapes if shape >= len(filled.rows))
                padding.rows += computed // len(filled.rows) * shape
                padding.full += computed_tokens(filled, align, all_rows=True)
                padding.num_batches += 1
                padding.num_incomplete += waste > FULL_WASTE
                padding.num_members += len(places)
                arrivals = (waiting[place].arrival for place in places)
                padding.waits += [now - arrival for arrival in arrivals if arrival < len(lengths)]
            waiting = [each for place, each in enumerate(waiting) if place not in places]
            tokens, look_at = tokens - filled.real_tokens, 0.0
        if now >= len(lengths) - 1 and (not waiting or waiting[0].arrival >= len(lengths)):
            break
    return padding
