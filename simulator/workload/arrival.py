"""One request as the workload makes it."""

from dataclasses import dataclass

from headrace.core.request import QosClass


@dataclass(frozen=True, slots=True)
class Arrival:
    """It asks for up to `max_output_tokens` and will end after `output_tokens`."""

    time_s: float
    qos_class: QosClass
    tenant: str
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int
    deadline_s: float | None = None
    patience_s: float | None = None
