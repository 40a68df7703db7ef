"""How one run of the output check went: what the gateway's metrics and spans say of it."""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.screening import ScreenPolicy, Verdict


class Outcome(StrEnum):
    """Of one run. Where it is LATE or FAILED there is no verdict, and the settings decide."""

    PASS = "pass"
    FOUND = "found"
    LATE = "late"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Checked:
    """One run over `num_windows` windows of an answer's text. `verdict` is the worst window's, None without one."""

    policy: ScreenPolicy
    outcome: Outcome
    verdict: Verdict | None
    num_windows: int
    took_s: float
