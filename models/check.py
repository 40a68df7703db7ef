"""Whether a converted model computes what its source does: the bounds that a conversion must keep to enter the cache.

A graph that loads, runs at full speed and gives the same vector for every input is a mistake that has been seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import EngineFault

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Agreement:
    """`correlation`: of the least alike position; `top1`: share of positions whose largest element is the same."""

    correlation: float
    top1: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a conversion must reach."""

    correlation: float
    top1: float


# Measured on SmolLM2-135M Q4_1 in float32: 0.9991 and 0.92 or more; with rounded zero points 0.77 and 0.58.
QUANTISED_DECODER = Bounds(correlation=0.99, top1=0.75)
# The same weights in float32 on both sides differ by the order of their sums only; an int8 ONNX of all-MiniLM-L6-v2 in
# OpenVINO and in ONNX Runtime as little.
EXACT = Bounds(correlation=0.9999, top1=0.95)
# Every matrix rounded to bfloat16: measured on SmolLM2-135M 0.99995.
ROUNDED_DECODER = Bounds(correlation=0.999, top1=0.9)
# Eight bits a weight with one scale a row, once the graph itself is known to be right: measured on SmolLM2-135M 0.994,
# on two layers of large random weights 0.986.
COMPRESSED_DECODER = Bounds(correlation=0.98, top1=0.75)


def compare(expected: Sequence[Float32], actual: Sequence[Float32], bounds: Bounds) -> Agreement:
    """Compares the outputs [T, N] of each probe. Raises EngineFault where they do not agree or `actual` is not sane."""
    check_sane(actual)
    pairs = [pair for one, other in zip(expected, actual, strict=True) for pair in zip(one, other, strict=True)]
    agreement = Agreement(
        correlation=min(float(np.corrcoef(one, other)[0, 1]) for one, other in pairs),
        top1=float(np.mean([one.argmax() == other.argmax() for one, other in pairs])),
    )
    if not (agreement.correlation >= bounds.correlation and agreement.top1 >= bounds.top1):
        raise EngineFault(
            f"the converted model does not compute what its source does: correlation {agreement.correlation:.4f} "
            f"(at least {bounds.correlation}), same top element at {agreement.top1:.0%} (at least {bounds.top1:.0%})"
        )
    return agreement


def same_scores(expected: Sequence[Float32], actual: Sequence[Float32]) -> None:
    """Compares a head's scores [N] for each probe, in float32 on both sides. Raises EngineFault where they differ."""
    if not all(np.allclose(one, other, rtol=1e-3, atol=1e-4) for one, other in zip(expected, actual, strict=True)):
        raise EngineFault("the converted model's head does not compute what its source does")


def check_sane(outputs: Sequence[Float32]) -> None:
    """Raises EngineFault unless the outputs [T, N] are finite, vary, and differ between probes at the last token."""
    if not all(np.isfinite(output).all() for output in outputs):
        raise EngineFault("the converted model's outputs are not all finite")
    if any(np.ptp(output, axis=-1).min() == 0 for output in outputs):
        raise EngineFault("the converted model's outputs are constant")
    last = [output[-1] for output in outputs]
    if any(np.allclose(one, other) for index, one in enumerate(last) for other in last[:index]):
        raise EngineFault("the converted model gives the same outputs for different inputs")
