"""Waiting for a device's event, never without a bound: each wait has the time that the step model predicts for it.

A wait that takes far longer is reported while it lasts; one that takes longer than a device can be trusted for is a
DeviceFault, which ends the executor so that its requests go on elsewhere. Decides nothing about either but when.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from headrace.core.errors import DeviceFault
from headrace.executor.memory.driver import DriverFault

LATE_FACTOR, LATE_S = 4.0, 0.05
"""A step or a wait is late when it takes over so many times as long as predicted, and so much longer."""
FAULT_FACTOR, FAULT_S = 50.0, 5.0
"""And a fault beyond the larger of these."""
FIRST_STEPS_S = 120.0
"""How long a wait may take of which nothing is known yet: kernels are compiled then."""
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 0.00005, 0.002


class Firing(Protocol):
    """Something that happens on a device."""

    def fired(self) -> bool:
        """Raises DriverFault where the device has failed."""


class Lateness(StrEnum):
    LATE = "late"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class OverdueWait:
    """A wait for `what` that should have been over after `predicted_s`, None where nothing is known, and has lasted
    `waited_s` at `at_ns` (time.time_ns)."""

    what: str
    lateness: Lateness
    predicted_s: float | None
    waited_s: float
    at_ns: int


Overdue = Callable[[OverdueWait], None]


def is_late(predicted_s: float | None, took_s: float) -> bool:
    """Far longer than predicted: something held the device up."""
    return predicted_s is not None and took_s > LATE_FACTOR * predicted_s and took_s > predicted_s + LATE_S


def is_fault(predicted_s: float | None, took_s: float) -> bool:
    """Longer than can be waited for."""
    bound_s = FIRST_STEPS_S if predicted_s is None else max(FAULT_FACTOR * predicted_s, FAULT_S)
    return took_s > bound_s


class EventWait:
    """Waits for events in the step loop's thread; `overdue` is told once when a wait is late, and again at a fault."""

    def __init__(
        self,
        overdue: Overdue,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`now` and `sleep` in seconds of one clock."""
        self._overdue = overdue
        self._now = now
        self._sleep = sleep

    def wait(self, event: Firing, what: str, predicted_s: float | None) -> float:
        """Until it has fired; returns the seconds that took. Raises DeviceFault past the bound, and where the device
        has failed at what it was given."""
        begun, sleep_s, late = self._now(), _SHORTEST_SLEEP_S, False
        while not _fired(event, what):
            waited_s = self._now() - begun
            if not late and is_late(predicted_s, waited_s):
                late = True
                self._overdue(OverdueWait(what, Lateness.LATE, predicted_s, waited_s, time.time_ns()))
            if is_fault(predicted_s, waited_s):
                self._overdue(OverdueWait(what, Lateness.FAULT, predicted_s, waited_s, time.time_ns()))
                expected = "at an unknown time" if predicted_s is None else f"after {predicted_s * 1000:.1f} ms"
                raise DeviceFault(f"the device is at {what} since {waited_s:.1f} s; it was expected {expected}")
            self._sleep(sleep_s)
            sleep_s = min(_LONGEST_SLEEP_S, sleep_s * 1.5)
        return self._now() - begun


def _fired(event: Firing, what: str) -> bool:
    try:
        return event.fired()
    except DriverFault as fault:  # it stays so: no later step would end better
        raise DeviceFault(f"the device has failed at {what}: {fault}") from fault
