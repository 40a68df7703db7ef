"""Laws of prompt and answer lengths, in tokens. Each `draw(rng, size)` gives that many, all of at least one."""

import math
from functools import cached_property
from statistics import NormalDist
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from headrace.simulator.workload.spec import Spec

Tokens = NDArray[np.int64]
Positive = Annotated[float, Field(gt=0, le=1e7)]

_Z90, _Z99 = NormalDist().inv_cdf(0.9), NormalDist().inv_cdf(0.99)


def whole(lengths: NDArray[np.float64]) -> Tokens:
    return np.maximum(1, np.rint(lengths)).astype(np.int64)


class Fixed(Spec):
    kind: Literal["fixed"]
    tokens: int = Field(ge=1)

    def draw(self, rng: np.random.Generator, size: int) -> Tokens:
        return np.full(size, self.tokens, np.int64)


class Lognormal(Spec):
    """By two of its quantiles."""

    kind: Literal["lognormal"]
    p50: Positive
    p90: Positive

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.p90 < self.p50:
            raise ValueError(f"p90 is {self.p90:g}, must be at least p50, {self.p50:g}")
        return self

    def draw(self, rng: np.random.Generator, size: int) -> Tokens:
        return whole(rng.lognormal(math.log(self.p50), math.log(self.p90 / self.p50) / _Z90, size))


class Histogram(Spec):
    """Even inside each cell; `edges` has one more than `weights`."""

    kind: Literal["histogram"]
    edges: tuple[Positive, ...] = Field(min_length=2)
    weights: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _matches(self) -> Self:
        if len(self.edges) != len(self.weights) + 1:
            raise ValueError(f"{len(self.edges)} edges for {len(self.weights)} weights, must be one more")
        if any(low >= high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges must rise")
        if not sum(self.weights) > 0:
            raise ValueError("weights must not all be 0")
        return self

    def draw(self, rng: np.random.Generator, size: int) -> Tokens:
        cumulated = np.concatenate([[0.0], np.cumsum(self.weights)])
        return whole(np.interp(rng.random(size), cumulated / cumulated[-1], np.array(self.edges)))


class Quantiles(Spec):
    """Fitted to a mean and three quantiles: the logarithm is piecewise linear over the normal law's.

    It passes through the quantiles; the slope below the median is what brings the mean nearest to its figure, the slope
    above p99 goes on.
    """

    kind: Literal["quantiles"]
    mean: Positive
    p50: Positive
    p90: Positive
    p99: Positive

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.p50 <= self.p90 <= self.p99:
            raise ValueError(f"p50, p90, p99 are {self.p50:g}, {self.p90:g}, {self.p99:g}, must rise")
        return self

    def draw(self, rng: np.random.Generator, size: int) -> Tokens:
        return whole(self._at(rng.standard_normal(size), self._slope_below))

    def _at(self, z: NDArray[np.float64], slope_below: float) -> NDArray[np.float64]:
        low, middle, high = math.log(self.p50), math.log(self.p90), math.log(self.p99)
        slope, slope_above = (middle - low) / _Z90, (high - middle) / (_Z99 - _Z90)
        logs = np.where(z < 0, low + slope_below * z, low + slope * z)
        return np.exp(np.where(z > _Z90, middle + slope_above * (z - _Z90), logs))

    @cached_property
    def _slope_below(self) -> float:
        grid = np.array([NormalDist().inv_cdf((i + 0.5) / 4000) for i in range(4000)])
        flat, steep = 0.0, 8.0
        for _ in range(40):  # the mean falls as the slope rises
            slope = (flat + steep) / 2
            flat, steep = (slope, steep) if np.mean(self._at(grid, slope)) > self.mean else (flat, slope)
        return flat


Lengths = Annotated[Fixed | Lognormal | Histogram | Quantiles, Field(discriminator="kind")]
