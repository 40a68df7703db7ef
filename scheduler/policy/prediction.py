"""What a request will take: learned from the steps that executors report and the answers that they finish.

A step's time is taken as linear in its decodes and its prefill tokens; the coefficients are a least-squares fit that
forgets, held to a prior while little has been seen. Answer lengths are histograms that forget, by model and class.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.request import QosClass
from headrace.core.step_model import PRIOR, StepModel, StepSample
from headrace.scheduler.policy.events import Request

PRIOR_OUTPUT_TOKENS = 128.0
_FORGET_ANSWER = 0.99
_ENOUGH_STEPS = 64
_ENOUGH_ANSWERS = 20.0
_MOST_TOKENS = 1 << 24


class AnswerLengths:
    """Answer lengths of one model and class: a mean and a histogram in powers of two, both of which forget."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sum = 0.0
        self._cells = [0.0] * 32
        self._unit = 1.0  # what an answer counts in the cells: the newest counts most, so that the others need no touch

    def observe(self, tokens: int) -> None:
        if not 0 < tokens <= _MOST_TOKENS:
            return
        self.weight = self.weight * _FORGET_ANSWER + 1.0
        self._sum = self._sum * _FORGET_ANSWER + tokens
        self._unit /= _FORGET_ANSWER
        if self._unit > 1e12:
            self._cells = [cell / self._unit for cell in self._cells]
            self._unit = 1.0
        self._cells[min(tokens.bit_length() - 1, 31)] += self._unit

    @property
    def mean(self) -> float:
        """The prior counts as one answer."""
        return (self._sum + PRIOR_OUTPUT_TOKENS) / (self.weight + 1.0)

    def quantile(self, share: float) -> float:
        """A length that `1 - share` of the answers reach: a lower bound; 1 while little is known."""
        if self.weight < _ENOUGH_ANSWERS:
            return 1.0
        left = share * self.weight * self._unit
        for power, cell in enumerate(self._cells):
            left -= cell
            if left < 0:
                return float(1 << power)
        return 1.0


@dataclass(slots=True)
class Predictor:
    """Everything learned, by model, and by model and class."""

    steps: defaultdict[str, StepModel] = field(default_factory=lambda: defaultdict(StepModel))
    answers: defaultdict[tuple[str, QosClass], AnswerLengths] = field(
        default_factory=lambda: defaultdict(AnswerLengths)
    )

    def observe_steps(self, model: str, samples: Sequence[StepSample]) -> None:
        if samples:
            self.steps[model].observe(samples)

    def observe_answer(self, request: Request, tokens: int) -> None:
        """A request has ended with so many tokens in all its answers."""
        key = request.model, request.qos_class
        self.answers[key].observe(-(-tokens // request.n))

    def output_tokens(self, request: Request) -> float:
        """What each answer will likely have."""
        known = self.answers.get((request.model, request.qos_class))
        return min(float(request.max_output_tokens), known.mean if known else PRIOR_OUTPUT_TOKENS)

    def service_s(self, request: Request, output_tokens: float) -> float:
        """From dispatch to the last token, among as many others as there have been of late."""
        known = self.steps.get(request.model)
        base, decode, prefill = known.coefficients if known else PRIOR
        decodes = known.decodes if known else 1.0
        return prefill * request.prompt_tokens + output_tokens * (base + decode * decodes)

    def finish_s(self, request: Request, output_tokens: float, num_beside: int) -> float:
        """From dispatch to the last token on an executor where so many others decode beside it."""
        known = self.steps.get(request.model)
        base, decode, prefill = known.coefficients if known else PRIOR
        return prefill * request.prompt_tokens + output_tokens * (base + decode * (num_beside + request.n))

    def batch_s(self, model: str, padded_tokens: int) -> float:
        """What one padded batch of so many tokens, padding and all, takes on its device."""
        known = self.steps.get(model)
        base, _, prefill = known.coefficients if known else PRIOR
        return base + prefill * padded_tokens

    def least_s(self, request: Request) -> float:
        """The least time that the request can take, alone on a device; 0 while too little has been seen to say so.

        Of the answers of its kind nine in ten take longer: its deadline is out of reach if even this is.
        """
        steps = self.steps.get(request.model)
        if steps is None or steps.num_samples < _ENOUGH_STEPS:
            return 0.0
        known = self.answers.get((request.model, request.qos_class))
        tokens = min(float(request.max_output_tokens), known.quantile(0.1) if known else 1.0)
        base, decode, prefill = steps.coefficients
        return prefill * request.prompt_tokens + tokens * (base + decode)
