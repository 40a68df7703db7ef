"""The padded batches that an executor has: which of their members it still holds, and when its device will be free.

An executor runs one batch and may hold another in front of its device. A batch is over when the ledger holds none of
its members any more; reports say so, and nobody else has to.
"""

from dataclasses import dataclass

from headrace.scheduler.policy.ledger import Reservation
from headrace.scheduler.policy.registry import Executor

MOST_IN_FLIGHT = 2
"""One that runs and one that is ready when it ends."""


@dataclass(slots=True, eq=False)
class Flight:
    """A batch on its executor: predicted to take `predicted_s` from `begins_at` on."""

    members: dict[str, Reservation]
    begins_at: float
    predicted_s: float


def depart(executor: Executor, members: dict[str, Reservation], predicted_s: float, now: float) -> None:
    """The batch goes to the executor; its device takes it when it is free."""
    flights = executor.flights
    executor.flights = [*flights, Flight(members, max(now, free_at(executor, now)), predicted_s)]


def land(executor: Executor, now: float) -> None:
    """To be called when the executor holds less: forgets batches that are over, and begins the next one now."""
    held = executor.ledger.reservations
    left = [flight for flight in executor.flights if any(held.get(each) is own for each, own in flight.members.items())]
    if len(left) < len(executor.flights):
        if left and left[0] is not executor.flights[0]:
            left[0].begins_at = now
        executor.flights = left


def num_in_flight(executor: Executor) -> int:
    """Batches that the executor has, those that it had before it was known here as one."""
    known = sum(each in executor.ledger.reservations for flight in executor.flights for each in flight.members)
    return len(executor.flights) + (len(executor.ledger.reservations) > known)


def free_at(executor: Executor, now: float) -> float:
    """When the device will likely have nothing to do; `now` where that is not known or has been due already."""
    return max([now, *(flight.begins_at + flight.predicted_s for flight in executor.flights)])
