"""Replays arrivals through a bucketing rule, and accounts what a padded engine would compute. Time is arrivals."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from headrace.scheduler.policy.buckets import LengthBuckets
from headrace.scheduler.policy.fill import Forming, powers_of_two


@dataclass(slots=True)
class Padding:
    """Tokens of all counted batches: the real ones, and what is computed for them under three accounts.

    `members`: only rows that hold a request. `rows`: empty rows too, up to the next power of two. `full`: always as
    many rows as the largest batch.
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
