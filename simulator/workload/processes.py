"""Laws of arrival times, in seconds. `times(rng, capacity_rps, start_s, end_s)` rises and stays in [start, end)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from headrace.simulator.workload.spec import Spec

_DRAWN_AT_ONCE = 1024


def gamma_times(rng: np.random.Generator, rate_rps: float, cv: float, start_s: float, end_s: float) -> Iterator[float]:
    """Gaps of a gamma law whose coefficient of variation is `cv`: 1 is a Poisson process, above it comes in bursts."""
    shape = 1 / cv**2
    now = start_s
    while True:
        for gap in rng.gamma(shape, 1 / (rate_rps * shape), _DRAWN_AT_ONCE).tolist():
            now += gap
            if now >= end_s:
                return
            yield now


class _Rated(Spec):
    """`load` is a share of what the fleet can serve of this stream alone; 1.2 is 120 % of saturation."""

    rate_rps: float | None = Field(None, gt=0, le=1e6)
    load: float | None = Field(None, gt=0, le=1000)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.rate_rps is None) is (self.load is None):
            raise ValueError("needs rate_rps or load, one of the two")
        return self

    def rate(self, capacity_rps: float) -> float:
        return self.rate_rps if self.rate_rps is not None else (self.load or 0.0) * capacity_rps


class Poisson(_Rated):
    kind: Literal["poisson"]

    def times(self, rng: np.random.Generator, capacity_rps: float, start_s: float, end_s: float) -> Iterator[float]:
        return gamma_times(rng, self.rate(capacity_rps), 1.0, start_s, end_s)


class Gamma(_Rated):
    kind: Literal["gamma"]
    cv: float = Field(gt=0, le=100)

    def times(self, rng: np.random.Generator, capacity_rps: float, start_s: float, end_s: float) -> Iterator[float]:
        return gamma_times(rng, self.rate(capacity_rps), self.cv, start_s, end_s)


class OnOff(_Rated):
    """Poisson for `on_s`, then nothing for `off_s`, and so on; the rate is the one while it is on."""

    kind: Literal["on_off"]
    on_s: float = Field(gt=0)
    off_s: float = Field(gt=0)

    def times(self, rng: np.random.Generator, capacity_rps: float, start_s: float, end_s: float) -> Iterator[float]:
        begins = start_s
        while begins < end_s:
            yield from gamma_times(rng, self.rate(capacity_rps), 1.0, begins, min(begins + self.on_s, end_s))
            begins += self.on_s + self.off_s


class Flood(Spec):
    """`count` requests from `at_s` on, evenly over `over_s`; all at once where that is 0."""

    kind: Literal["flood"]
    count: int = Field(ge=1)
    at_s: float = Field(0.0, ge=0)
    over_s: float = Field(0.0, ge=0)

    def times(self, rng: np.random.Generator, capacity_rps: float, start_s: float, end_s: float) -> Iterator[float]:
        for number in range(self.count):
            time_s = start_s + self.at_s + self.over_s * number / self.count
            if time_s < end_s:
                yield time_s


Process = Annotated[Poisson | Gamma | OnOff | Flood, Field(discriminator="kind")]
