"""What a turn of the step loop produced, for whoever sends it on."""

from dataclasses import dataclass, field

from headrace.core.errors import HeadraceError
from headrace.core.request import FinishReason
from headrace.executor.sampler import Choice
from headrace.executor.sequence import Job, Sequence


@dataclass(frozen=True, slots=True)
class Delta:
    """One sequence's new token, its end, or its failure. `sequence` is for the trace: its times and counts."""

    job: Job
    index: int
    choice: Choice | None = None
    finish: FinishReason = FinishReason.NONE
    error: HeadraceError | None = None
    sequence: Sequence | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Deltas in order, requests that have been let in, and requests that left altogether.

    `output_tokens` stand beside `finished`: the tokens of all of a request's answers.
    """

    deltas: list[Delta] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)

    def leave(self, request_id: str, output_tokens: int = 0) -> None:
        """The request has left."""
        self.finished.append(request_id)
        self.output_tokens.append(output_tokens)

    @property
    def empty(self) -> bool:
        return not (self.deltas or self.started or self.finished)
