"""What one step did, as its meters are told. Plain numbers, made in the worker's thread."""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.step_model import StepSample
from headrace.executor.event_wait import is_late


@dataclass(frozen=True, slots=True)
class StepReading:
    """Tokens and seconds of a step, its rows, and the tokens of context that they read.

    `predicted_s` is how long it should have taken, None where too little is known yet. `padding_tokens` are among the
    sample's prefill tokens. Among its decodes are `num_guesses`, rows of tokens that are only guessed, and
    `num_dummies`, rows that stand in for such.
    """

    sample: StepSample
    num_rows: int
    context_tokens: int = 0
    padding_tokens: int = 0
    num_guesses: int = 0
    num_dummies: int = 0
    predicted_s: float | None = None

    @property
    def late(self) -> bool:
        """It took far longer than predicted: something held the device up."""
        return is_late(self.predicted_s, self.sample.duration_s)


Stepped = Callable[[StepReading], None]


def nobody(reading: StepReading) -> None:
    """For a worker that nobody measures."""
