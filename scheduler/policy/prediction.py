"""What a request will take: learned from the steps that executors report and the answers that they finish.

A step's time is taken as linear in its decodes and its prefill tokens; the coefficients are a least-squares fit that
forgets, held to a prior while little has been seen. Answer lengths are histograms that forget, by model and class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.request import QosClass
from headrace.scheduler.policy.events import Request, StepSample

PRIOR = (0.008, 0.0005, 0.0003)
"""Seconds of a step, of each decode in it, of each prefill token: a small model on two cores."""
PRIOR_OUTPUT_TOKENS = 128.0
_SCALE = (1.0, 1.0, 0.01)
"""What the unknowns of the fit are multiplied by, so that they are of one size: prefill tokens count in hundreds."""
_FORGET_STEP = 0.998
_FORGET_ANSWER = 0.99
_REFIT_STEPS = 32
_ENOUGH_STEPS = 64
_ENOUGH_ANSWERS = 20.0
_LONGEST_STEP_S = 60.0
_MOST_TOKENS = 1 << 24


class StepModel:
    """How long a model's steps take on the executors that have it."""

    def __init__(self) -> None:
        self._since_fit = 0
        self.num_samples = 0
        self.decodes = 1.0  # how many decode together, of late
        self.coefficients = PRIOR
        # normal equations of (1, decodes, prefill tokens / 100), with the prior as a few samples' worth of evidence
        self._moments = (1.0, 0.0, 0.0, 1.0, 0.0, 1.0)  # of the symmetric matrix, the upper half by rows
        self._right = tuple(each / scale for each, scale in zip(PRIOR, _SCALE, strict=True))

    def observe(self, samples: Sequence[StepSample]) -> None:
        """Nonsense (negative, endless) is passed over."""
        for sample in samples:
            decodes, seconds = sample.num_decodes, sample.duration_s
            if not (
                0 < seconds < _LONGEST_STEP_S
                and 0 <= decodes <= _MOST_TOKENS
                and 0 <= sample.prefill_tokens <= _MOST_TOKENS
            ):
                continue
            prefill, keep = sample.prefill_tokens * _SCALE[2], _FORGET_STEP
            one, d, p, dd, dp, pp = self._moments
            self._moments = (
                one * keep + 1.0,
                d * keep + decodes,
                p * keep + prefill,
                dd * keep + decodes * decodes,
                dp * keep + decodes * prefill,
                pp * keep + prefill * prefill,
            )
            y, yd, yp = self._right
            self._right = (y * keep + seconds, yd * keep + decodes * seconds, yp * keep + prefill * seconds)
            self.decodes += 0.02 * (decodes - self.decodes)
            self.num_samples += 1
            self._since_fit += 1
        if self._since_fit >= _REFIT_STEPS:
            self._since_fit = 0
            one, d, p, dd, dp, pp = self._moments
            solved = _solve([[one, d, p], [d, dd, dp], [p, dp, pp]], list(self._right))
            if solved is not None and all(math.isfinite(each) for each in solved):
                base, decode, prefill = (
                    max(0.0, each * scale) for each, scale in zip(solved, _SCALE, strict=True)
                )
                self.coefficients = (base, decode, prefill) if base + decode + prefill > 0 else PRIOR

    def seconds(self, num_decodes: float, prefill_tokens: float) -> float:
        """The predicted time of one step."""
        base, decode, prefill = self.coefficients
        return base + decode * num_decodes + prefill * prefill_tokens


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Three equations by Gauss's elimination, a little ridge against a singular one."""
    rows = [
        [*(value + (1e-9 if i == j else 0.0) for j, value in enumerate(row)), right[i]] for i, row in enumerate(matrix)
    ]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            return None
        for k in range(3):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [rows[i][3] / rows[i][i] for i in range(3)]


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

    steps: dict[str, StepModel] = field(default_factory=dict)
    answers: dict[tuple[str, QosClass], AnswerLengths] = field(default_factory=dict)

    def observe_steps(self, model: str, samples: Sequence[StepSample]) -> None:
        if samples:
            self.steps.setdefault(model, StepModel()).observe(samples)

    def observe_answer(self, request: Request, tokens: int) -> None:
        """A request has ended with so many tokens in all its answers."""
        key = request.model, request.qos_class
        self.answers.setdefault(key, AnswerLengths()).observe(-(-tokens // request.n))

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
