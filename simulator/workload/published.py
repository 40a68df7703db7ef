"""Published figures of recorded traffic, and a generator fitted to them for where the records are not at hand."""

import math
from dataclasses import dataclass

import numpy as np

from headrace.simulator.workload.lengths import Quantiles
from headrace.simulator.workload.processes import gamma_times
from headrace.simulator.workload.recorded import Recorded


@dataclass(frozen=True, slots=True)
class Published:
    """Of a trace; no rate where it has no arrival times. `cv` is of the gaps between arrivals."""

    duration_s: float
    rate_rps: float | None
    cv: float
    prompt: Quantiles
    output: Quantiles

    def make(self, name: str, rng: np.random.Generator, duration_s: float, rate_scale: float) -> Recorded:
        """Lengths and, where there is a rate, times of about as many requests as would have come."""
        if self.rate_rps is None:
            times, count = None, 20_000
        else:
            rate_rps = self.rate_rps * rate_scale
            times = np.fromiter(gamma_times(rng, rate_rps, self.cv, 0.0, duration_s), np.float64)
            count = len(times)
        origin = f"{name}: made up, fitted to its published figures (the records are not at hand)"
        return Recorded(times, self.prompt.draw(rng, count), self.output.draw(rng, count), origin)


def _lengths(mean: float, p50: float, p90: float, p99: float) -> Quantiles:
    return Quantiles(kind="quantiles", mean=mean, p50=p50, p90=p90, p99=p99)


_DAY_S = 86_400.0

PUBLISHED: dict[str, Published] = {
    "azure_llm_2023_code": Published(
        3_436, 2.57, 13.15, _lengths(2_048, 1_469, 5_188, 7_436), _lengths(28, 13, 55, 251)
    ),
    "azure_llm_2023_conv": Published(
        3_502, 5.53, 1.09, _lengths(1_155, 1_020, 2_734, 4_142), _lengths(211, 129, 424, 601)
    ),
    # its times are recorded in steps of 3 s, so the gaps say nothing: their spread is taken from that of the counts
    "mooncake_conversation": Published(
        3_537, 3.40, math.sqrt(2.1), _lengths(12_035, 6_909, 27_367, 85_400), _lengths(343, 350, 597, 1_119)
    ),
    "mooncake_synthetic": Published(
        1_022, 3.91, 1.01, _lengths(15_325, 11_587, 38_611, 66_456), _lengths(149, 69, 389, 768)
    ),
    "arxiv_summarization_lengths": Published(
        3_600, None, 1.0, _lengths(2_588, 2_730, 3_702, 3_933), _lengths(291, 167, 372, 3_271)
    ),
    "servegen_m-large": Published(_DAY_S, 195.8, 3.45, _lengths(694, 600, 909, 3_147), _lengths(98, 36, 431, 616)),
    "servegen_m-mid": Published(_DAY_S, 1_790.1, 12.03, _lengths(249, 163, 290, 1_383), _lengths(47, 36, 89, 209)),
    "servegen_m-small": Published(_DAY_S, 1_174.4, 3.58, _lengths(111, 30, 218, 1_490), _lengths(11, 3, 34, 126)),
    "servegen_deepseek-r1": Published(
        _DAY_S, 16.0, 2.28, _lengths(1_268, 208, 2_092, 23_423), _lengths(1_527, 792, 3_432, 12_607)
    ),
}
"""By trace: length, rate, spread of the gaps, prompt and output lengths as mean, p50, p90, p99."""
