"""What a device says of itself while it works: its clock, what holds it down, its memory's traffic."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HEAT, POWER = "heat", "power"
"""What may hold a clock down."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """At one moment; None or missing where the device or the system does not tell.

    `limited_s`: seconds up to now in which the clock was held down, by reason. `memory_busy`: the share of the last
    moment in which memory was read or written. `memory_moved_bytes` up to now, by measurement; `memory_peak` in bytes
    a second.
    """

    clock_hz: float | None = None
    most_clock_hz: float | None = None
    limited_s: Mapping[str, float] = field(default_factory=dict)
    memory_busy: float | None = None
    memory_moved_bytes: float | None = None
    memory_peak: float | None = None


Read = Callable[[], DeviceReading]
