"""vip: REALTIME in a flood: the classes against first come first served on our own engine, and vLLM's priorities.

Requests of mixed lengths arrive at random at 120 % of what the suite can answer, one in ten of them REALTIME. Every
system gets the same requests at the same times, in turns. What a user of a stream waits for is its first token.
"""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

from headrace.benchmarks.class_mix import CLASSES, draw_class
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, Lab
from headrace.benchmarks.measure import open_peer_loop
from headrace.benchmarks.open_loop import Arrival, Outcome, open_loop, poisson_times, steady_rate
from headrace.benchmarks.peers.catalogue import VLLM
from headrace.benchmarks.peers.running import started_peers
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.suite import Suite, started
from headrace.core.errors import Unavailable

OURS, FCFS, PRIORITY = "headrace", "fcfs", "vllm"
OVERLOAD = 1.2
WINDOWS = 3
"""The flood lasts so many of the lab's windows."""
BURST = 256
PROMPT = (128, 0.7, 16, 320)
"""Median, sigma of the logarithm, least and most of prompt lengths in tokens."""
ANSWER = (64, 0.6, 8, 160)


async def run(lab: Lab) -> Report:
    """One burst to find the rate, then `rounds` floods for each system in turns."""
    prompts, window_s = lab.prompts(), WINDOWS * lab.window_s
    rounds: dict[str, list[list[Outcome]]] = {}
    names = (VLLM.name,)
    async with AsyncExitStack() as stack:
        peers = await stack.enter_async_context(started_peers(lab, names, NUM_STREAMS))
        ours = await stack.enter_async_context(started(lab.model, lab.log("suite")))
        fcfs = await stack.enter_async_context(
            started(lab.model, lab.log("suite-fcfs"), {"HEADRACE_SCHEDULER__ORDER": "fcfs"})
        )
        lab.say(f"a burst of {BURST} requests")
        burst = await open_loop(_stream(ours), _burst(prompts, lab.seed), float("inf"))
        capacity = steady_rate(each.ended_s for each in burst)
        lab.say(f"{capacity:.2f} requests/s; the flood is {OVERLOAD * capacity:.2f}")
        for number in range(lab.rounds):
            arrivals = flood(prompts, OVERLOAD * capacity, window_s, lab.seed + number)
            for name, suite in ((OURS, ours), (FCFS, fcfs)):
                lab.say(f"round {number + 1} of {lab.rounds}: {name}")
                rounds.setdefault(name, []).append(await open_loop(_stream(suite), arrivals, window_s))
            for peer, driver in list(peers.running.items()):
                lab.say(f"round {number + 1} of {lab.rounds}: {PRIORITY}")
                try:
                    rounds.setdefault(PRIORITY, []).append(await open_peer_loop(driver, arrivals, window_s))
                except Unavailable as error:
                    del peers.running[peer]
                    peers.missing[peer] = error.message
    return report(lab, rounds, capacity, window_s, peers.missing, {"peers": peers.options()})


def flood(prompts: Prompts, rate: float, window_s: float, seed: int) -> list[Arrival]:
    """Requests at random times, of random class and lengths."""
    drawn = random.Random(seed)
    return [_arrival(prompts, drawn, at_s) for at_s in poisson_times(rate, window_s, seed)]


def _burst(prompts: Prompts, seed: int) -> list[Arrival]:
    drawn = random.Random(seed)
    return [_arrival(prompts, drawn, 0.0) for _ in range(BURST)]


def _arrival(prompts: Prompts, drawn: random.Random, at_s: float) -> Arrival:
    qos = draw_class(drawn)
    return Arrival(at_s, prompts.draw(_length(drawn, *PROMPT)), _length(drawn, *ANSWER), qos)


def _length(drawn: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return min(max(round(median * drawn.lognormvariate(0.0, sigma)), least), most)


def _stream(suite: Suite) -> Callable[[Sequence[int], int, str], AsyncIterator[int]]:
    return lambda prompt, max_tokens, qos: suite.stream(prompt, max_tokens, qos)


def report(
    lab: Lab,
    rounds: dict[str, list[list[Outcome]]],
    capacity: float,
    window_s: float,
    missing: dict[str, str],
    settings: dict[str, Any],
) -> Report:
    """Over all rounds' requests together."""
    pooled = {name: [outcome for outcomes in each for outcome in outcomes] for name, each in rounds.items()}
    figures = [
        Figure("vip.realtime_mean_cut", 1 - _mean(pooled[OURS]) / _mean(pooled[FCFS])),
        Figure("vip.realtime_p99_cut", 1 - _p99(pooled[OURS]) / _p99(pooled[FCFS])),
        Figure("vip.normal_throughput_change", _tokens(pooled[OURS]) / _tokens(pooled[FCFS]) - 1),
    ]
    rows = [
        Row(
            name,
            {
                "class": qos,
                "requests": f"{len([each for each in outcomes if each.qos == qos])}",
                "TTFT ms": f"{_mean(outcomes, qos) * 1000:,.0f}",
                "p99 ms": f"{_p99(outcomes, qos) * 1000:,.0f}",
                "whole ms": f"{_mean(outcomes, qos, total=True) * 1000:,.0f}",
                "tokens/s": f"{_tokens(outcomes, qos) / window_s / len(rounds[name]):,.0f}",
            },
        )
        for name, outcomes in pooled.items()
        for qos, _ in CLASSES
    ]
    rows += [Row(name, note=reason) for name, reason in missing.items()]
    raw: dict[str, Any] = {name: [[asdict(o) for o in each] for each in outcomes] for name, outcomes in rounds.items()}
    return Report(
        "vip",
        figures,
        rows,
        settings=lab.settings()
        | settings
        | {"overload": OVERLOAD, "requests_per_s": OVERLOAD * capacity, "flood_s": window_s, "classes": CLASSES}
        | {"prompt_lengths": PROMPT, "answer_lengths": ANSWER},
        raw=raw,
        notes=[
            "cuts are of the time to first token; tokens/s and normal throughput count what arrives within the flood",
            "fcfs is this suite with scheduler.order = fcfs; vllm runs with its priority scheduling",
        ],
    )


def _times(outcomes: Sequence[Outcome], qos: str, *, total: bool = False) -> list[float]:
    return sorted(each.total_s if total else each.ttft_s for each in outcomes if each.qos == qos)


def _mean(outcomes: Sequence[Outcome], qos: str = "realtime", *, total: bool = False) -> float:
    times = _times(outcomes, qos, total=total)
    return sum(times) / len(times) if times else float("nan")


def _p99(outcomes: Sequence[Outcome], qos: str = "realtime") -> float:
    times = _times(outcomes, qos)
    return times[min(len(times) - 1, int(0.99 * len(times)))] if times else float("nan")


def _tokens(outcomes: Sequence[Outcome], qos: str = "normal") -> int:
    return sum(each.window_tokens for each in outcomes if each.qos == qos)
