"""What a run writes down as it goes: gaps between tokens, slots and tokens over time, work useful and not."""

from collections import defaultdict
from dataclasses import dataclass, field

from headrace.core.request import QosClass
from headrace.scheduler.policy.commands import CloseReason
from headrace.simulator.histogram import Histogram

Group = tuple[QosClass, str]
"""Class and tenant."""


@dataclass(slots=True)
class Cell:
    """One interval of the run: the integrals over it."""

    slot_seconds: float = 0.0
    busy_seconds: float = 0.0
    output_tokens: int = 0
    arrivals: int = 0


@dataclass(slots=True)
class Telemetry:
    """`useful_tokens` of the `computed_tokens` were neither padding nor computed again."""

    interval_s: float
    cells: dict[int, Cell] = field(default_factory=lambda: defaultdict(Cell))
    gaps: dict[Group, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    served_tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by tenant, while requests arrive
    until_s: float = float("inf")  # the end of arrivals
    num_steps: int = 0
    useful_tokens: int = 0
    computed_tokens: int = 0
    possible_rows: int = 0  # of padded batches; `rows` of them were taken
    rows: int = 0
    batches: dict[CloseReason, int] = field(default_factory=lambda: defaultdict(int))  # padded ones
    num_displaced: int = 0
    num_dropped: int = 0
    num_resumed: int = 0

    def cell(self, time_s: float) -> Cell:
        return self.cells[int(time_s / self.interval_s)]

    def arrived(self, time_s: float) -> None:
        self.cell(time_s).arrivals += 1

    def stepped(self, began_at: float, duration_s: float, num_slots: int, num_outputs: int) -> None:
        """One step with so many slots taken. A step across intervals is shared out between them."""
        self.num_steps += 1
        ends_at, first = began_at + duration_s, int(began_at / self.interval_s)
        last = int(ends_at / self.interval_s)
        for number in range(first, last + 1):
            low, high = max(began_at, number * self.interval_s), min(ends_at, (number + 1) * self.interval_s)
            if high > low or first == last:
                cell = self.cells[number]
                cell.slot_seconds += num_slots * (high - low)
                cell.busy_seconds += high - low
        self.cells[last].output_tokens += num_outputs

    def served(self, time_s: float, tenant: str, tokens: int) -> None:
        if time_s <= self.until_s:
            self.served_tokens[tenant] += tokens
