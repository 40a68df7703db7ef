"""One request's way through a run: what it is, what became of it and when."""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.request import QosClass
from headrace.scheduler.policy.commands import Dispatch
from headrace.scheduler.policy.events import Request


class Outcome(StrEnum):
    """Where a submission went: every one has exactly one of these in the end."""

    OPEN = "open"
    FINISHED = "finished"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    LOST = "lost"  # with its executor, or sent to one that could not take it


@dataclass(slots=True, eq=False)
class Job:
    """Times are seconds of the run, None for what has not happened.

    `qos_class` is its own, which it is reported under; `request` has the one that the machine is told. It will answer
    `output_tokens`; `generated` are known to be out.
    `batch` is with whom the scheduler has sent it to an executor.
    """

    number: int
    request: Request
    qos_class: QosClass
    output_tokens: int
    arrived_at: float
    patience_s: float | None = None
    batch: Dispatch | None = None
    started_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    generated: int = 0
    num_displacements: int = 0
    outcome: Outcome = Outcome.OPEN
    reason: str = ""

    @property
    def placed(self) -> bool:
        return self.batch is not None

    @property
    def waited_s(self) -> float | None:
        """Until an executor took it."""
        return None if self.started_at is None else self.started_at - self.arrived_at

    @property
    def starved_s(self) -> float | None:
        """Until an executor took it, or it ended untaken. None while it waits."""
        until = self.started_at if self.started_at is not None else self.ended_at
        return None if until is None else until - self.arrived_at

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_at is None else self.first_at - self.arrived_at

    @property
    def total_s(self) -> float | None:
        """Of a finished one, from arrival to the end."""
        if self.outcome is not Outcome.FINISHED or self.ended_at is None:
            return None
        return self.ended_at - self.arrived_at
