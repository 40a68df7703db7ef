"""What a request will take: learned from the steps that executors report and the answers that they finish.

A step's time is taken as linear in its decodes and its prefill tokens; the coefficients are a least-squares fit that
forgets, held to a prior while little has been seen: one for each model, precision and architecture. What is predicted
before an executor has been chosen is what the fastest of them would take. Answer lengths are histograms that forget, by
model and class.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from headrace.core.request import Precision, QosClass
from headrace.core.step_model import PRIOR, StepModel
from headrace.scheduler.policy.events import Request

PRIOR_OUTPUT_TOKENS = 128.0
_FORGET_ANSWER = 0.99
_ENOUGH_STEPS = 64
_ENOUGH_ANSWERS = 20.0
_MOST_TOKENS = 1 << 24
_MOST_KINDS = 4096
"""Of steps. Executors that make up an architecture each are not remembered for ever."""

StepKind = tuple[str, Precision, str]
"""Whose steps are taken to be alike: of a model in a precision on an architecture."""


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
    """Everything learned, by kind of step, and by model and class."""

    steps: dict[StepKind, StepModel] = field(default_factory=dict)
    answers: defaultdict[tuple[str, QosClass], AnswerLengths] = field(
        default_factory=lambda: defaultdict(AnswerLengths)
    )
    _by_model: defaultdict[str, list[StepModel]] = field(default_factory=lambda: defaultdict(list))

    def steps_of(self, kind: StepKind) -> StepModel:
        """What is and will be learned of these steps."""
        known = self.steps.get(kind)
        if known is None:
            known = StepModel()
            if len(self.steps) < _MOST_KINDS:
                self.steps[kind] = known
                self._by_model[kind[0]].append(known)
        return known

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
        known = self._by_model.get(request.model)
        if not known:
            return _answer_s(PRIOR, request, output_tokens, 1.0)
        return min(_answer_s(steps.coefficients, request, output_tokens, steps.decodes) for steps in known)

    def least_s(self, request: Request) -> float:
        """The least time that the request can take, alone on a device; 0 while too little has been seen to say so.

        Of the answers of its kind nine in ten take longer: its deadline is out of reach if even this is.
        """
        known = self._by_model.get(request.model)
        if not known or any(steps.num_samples < _ENOUGH_STEPS for steps in known):
            return 0.0
        lengths = self.answers.get((request.model, request.qos_class))
        tokens = min(float(request.max_output_tokens), lengths.quantile(0.1) if lengths else 1.0)
        return min(_answer_s(steps.coefficients, request, tokens, 1.0) for steps in known)


def finish_s(steps: StepModel, request: Request, output_tokens: float, num_beside: int) -> float:
    """From dispatch to the last token on an executor with such steps, where so many others decode beside it."""
    return _answer_s(steps.coefficients, request, output_tokens, num_beside + request.n)


def _answer_s(
    coefficients: tuple[float, float, float], request: Request, output_tokens: float, decodes: float
) -> float:
    base, decode, prefill = coefficients
    return prefill * request.prompt_tokens + output_tokens * (base + decode * decodes)
