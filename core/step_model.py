"""How long a step of an engine takes: linear in its decodes and its prefill tokens, learned from steps that were run.

A least-squares fit that forgets, held to a prior while little has been seen. Plain numbers: the executor plans its
steps by it, the scheduler predicts with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR = (0.008, 0.0005, 0.0003)
"""Seconds of a step, of each decode in it, of each prefill token: a small model on two cores."""
_SCALE = (1.0, 1.0, 0.01)
"""What the unknowns of the fit are multiplied by, so that they are of one size: prefill tokens count in hundreds."""
_FORGET_STEP = 0.998
_REFIT_STEPS = 32
_LONGEST_STEP_S = 60.0
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class StepSample:
    """What one step took: rows of one token, prompt tokens beside them, seconds in the engine."""

    num_decodes: int
    prefill_tokens: int
    duration_s: float


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
                base, decode, prefill = (max(0.0, each * scale) for each, scale in zip(solved, _SCALE, strict=True))
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
