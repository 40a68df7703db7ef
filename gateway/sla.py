"""What was promised about time, and what is missed now. Pure: times come in.

An SLA says when the caller wants to hear; a deadline says when the answer is of no use any more.
"""

from dataclasses import dataclass
from enum import Enum

from headrace.chassis.config import SlaDefault
from headrace.core.errors import DeadlineMissed, InvalidRequest

MAX_SLA_MS = 86_400_000
FIRST_TOKEN, TOTAL = "first_token_ms", "total_ms"


class OnMiss(Enum):
    """What becomes of an answer that is not there in time."""

    PARTIAL = "partial"
    CANCEL = "cancel"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class Sla:
    """Milliseconds from the call's arrival, 0 for none; one of them at least is set."""

    first_token_ms: int
    total_ms: int
    on_miss: OnMiss

    def due(self, *, begun: bool) -> tuple[str, float] | None:
        """The promise that comes first and when, in seconds from the arrival; `begun`: the first token is there."""
        promises = [(FIRST_TOKEN, 0 if begun else self.first_token_ms), (TOTAL, self.total_ms)]
        return min(((name, ms / 1000) for name, ms in promises if ms), key=lambda each: each[1], default=None)

    @property
    def first_s(self) -> float:
        """When the first promise can be broken, in seconds from the arrival."""
        return min(ms for ms in (self.first_token_ms, self.total_ms) if ms) / 1000

    @property
    def last_s(self) -> float:
        """When nothing more can be missed, in seconds from the arrival."""
        return max(self.first_token_ms, self.total_ms) / 1000

    def missed(self, name: str, num_tokens: int) -> DeadlineMissed:
        """The error of a call that ends for it."""
        ms = self.first_token_ms if name == FIRST_TOKEN else self.total_ms
        return DeadlineMissed(
            f"the SLA {name} of {ms} ms passed after {num_tokens} tokens", field=f"sla.{name}", limit=f"{ms} ms"
        )


def resolve(
    first_token_ms: int | None, total_ms: int | None, on_miss: OnMiss | None, default: SlaDefault
) -> Sla | None:
    """The request's SLA over its class's; None for none. Raises InvalidRequest."""
    for name, ms in ((FIRST_TOKEN, first_token_ms), (TOTAL, total_ms)):
        if ms is not None and not 0 <= ms <= MAX_SLA_MS:
            raise InvalidRequest(
                f"sla.{name} is {ms}, must be 0 (none) to {MAX_SLA_MS}", field=f"sla.{name}", limit=f"0..{MAX_SLA_MS}"
            )
    first = default.first_token_ms if first_token_ms is None else first_token_ms
    total = default.total_ms if total_ms is None else total_ms
    if 0 < total < first:
        if first_token_ms is not None and total_ms is not None:
            raise InvalidRequest(
                f"sla.first_token_ms {first} is over sla.total_ms {total}",
                field="sla.first_token_ms",
                limit=f"0..{total}",
            )
        first, total = (0, total) if first_token_ms is None else (first, 0)  # the class's gives way to the request's
    if first or total:
        return Sla(first, total, on_miss or OnMiss(default.on_miss))
    if on_miss is not None:
        raise InvalidRequest(
            "sla.on_miss says what to do on a miss, and nothing can be missed",
            field="sla.on_miss",
            limit="with first_token_ms or total_ms",
        )
    return None
