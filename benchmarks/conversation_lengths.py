"""Recorded conversations as load: when they came, and lengths a quarter as long, so that a CPU serves enough."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.core.errors import Unavailable
from headrace.simulator.workload.traces import load_trace

TRACE = "azure_llm_2023_conv"
SHRINK = 4
MOST = (1024, 256)
"""Tokens of prompt and answer at most, after shrinking."""

Recording = tuple[list[float], list[tuple[int, int]]]
"""Seconds since the first request, and tokens of prompt and answer, request by request."""


def shrunk(prompt: float, answer: float) -> tuple[int, int]:
    """Tokens of a prompt and of an answer as they are served; neither is ever nothing."""
    return min(max(2, round(prompt / SHRINK)), MOST[0]), min(max(1, round(answer / SHRINK)), MOST[1])


def recording(workloads: Path | None, seed: int) -> Recording:
    """The trace's times and shrunk lengths; made up from its published figures where there is no folder of traces."""
    folder = workloads if workloads and (workloads / "traces").is_dir() else None
    trace = load_trace(TRACE, np.random.default_rng(seed), duration_s=None, rate_scale=1.0, folder=folder)
    if trace.times is None:
        raise Unavailable(f"{TRACE} has no times")
    lengths = [shrunk(*each) for each in zip(trace.prompts.tolist(), trace.outputs.tolist(), strict=True)]
    return trace.times.tolist(), lengths


def excerpt(
    times: Sequence[float], lengths: Sequence[tuple[int, int]], rate: float, window_s: float, drawn: random.Random
) -> list[tuple[float, int, int]]:
    """Consecutive requests from a random one on, `window_s` long once their rate is `rate`: second, prompt, answer."""
    count = max(2, round(rate * window_s))
    begin = drawn.randrange(max(1, len(times) - count))
    chosen = list(zip(times[begin : begin + count], lengths[begin : begin + count], strict=True))
    first, span = chosen[0][0], max(chosen[-1][0] - chosen[0][0], 1e-9)
    return [((time_s - first) / span * window_s, *each) for time_s, each in chosen]
