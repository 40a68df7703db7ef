"""One measurement of one system, ours and a peer alike: a window of a closed loop, or requests one by one."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from headrace.benchmarks.closed_loop import Reply, Window, closed_loop, one_by_one
from headrace.benchmarks.lab import NUM_STREAMS, OUTPUT_TOKENS, PROMPT_TOKENS, Lab
from headrace.benchmarks.machine import num_cores
from headrace.benchmarks.open_loop import Arrival, Outcome
from headrace.benchmarks.peers.process import Driver
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.suite import Suite

MARGIN_S = 300.0
"""Beyond the measurement itself: how long a system may take over the requests that were running at its end."""
MOST_TOKENS_PER_S_AND_CORE = 2000
"""Above what any peer reaches with this model, to draw enough prompts before the measurement."""


async def saturate_suite(suite: Suite, prompts: Prompts, lab: Lab, window_s: float) -> Window:
    """One window of our suite under NUM_STREAMS busy streams."""
    return await closed_loop(
        suite.stream,
        chain(prompts.draw_many(_count(lab.warm_s + window_s), PROMPT_TOKENS), prompts.endless(PROMPT_TOKENS)),
        num_streams=NUM_STREAMS,
        max_tokens=OUTPUT_TOKENS,
        warm_s=lab.warm_s,
        window_s=window_s,
    )


async def saturate_peer(driver: Driver, prompts: Prompts, lab: Lab, window_s: float) -> Window:
    """The same of a peer."""
    command = {
        "cmd": "saturate",
        "prompts": prompts.draw_many(_count(lab.warm_s + window_s), PROMPT_TOKENS),
        "num_streams": NUM_STREAMS,
        "max_tokens": OUTPUT_TOKENS,
        "warm_s": lab.warm_s,
        "window_s": window_s,
    }
    result = await driver.ask(command, lab.warm_s + window_s + MARGIN_S)
    return Window(result["window_s"], result["num_tokens"], [Reply(**reply) for reply in result["replies"]])


async def single_suite(suite: Suite, prompts: Sequence[Sequence[int]]) -> list[Reply]:
    """Our answers to prompts sent one by one."""
    return await one_by_one(suite.stream, prompts, OUTPUT_TOKENS)


async def single_peer(driver: Driver, prompts: Sequence[Sequence[int]]) -> list[Reply]:
    """A peer's."""
    command = {"cmd": "single", "prompts": prompts, "max_tokens": OUTPUT_TOKENS}
    return [Reply(**reply) for reply in (await driver.ask(command, MARGIN_S))["replies"]]


async def open_peer_loop(driver: Driver, arrivals: Sequence[Arrival], window_s: float) -> list[Outcome]:
    """A peer's answers to requests that arrive at their times."""
    command = {"cmd": "open", "arrivals": [asdict(each) for each in arrivals], "window_s": window_s}
    return [Outcome(**each) for each in (await driver.ask(command, window_s + MARGIN_S))["outcomes"]]


def _count(seconds: float) -> int:
    return int(seconds * MOST_TOKENS_PER_S_AND_CORE * num_cores() / OUTPUT_TOKENS) + 2 * NUM_STREAMS


def window_json(window: Window) -> dict[str, Any]:
    """Raw samples, with the rate they give."""
    return {**asdict(window), "tokens_per_s": window.tokens_per_s}


def median(values: Sequence[float]) -> float | None:
    """None for no values."""
    return statistics.median(values) if values else None
