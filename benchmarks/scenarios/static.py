"""static: continuous batching through the whole suite against static batching on the bare engine, lengths mixed.

Lengths follow the conversations of a recorded trace (azure_llm_2023_conv; without the folder, made up from its
published figures), a quarter as long, so that a CPU serves enough of them. Throughput is that of a burst; latency that
of arrivals at 80 % of what the suite can answer, the same for both. Static batching is padded, as rectangular tensors
want it, at the best of several batch sizes; beside it stands what ragged static batches would give.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.benchmarks.conversation_lengths import MOST, SHRINK, recording
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.open_loop import Arrival, ClassStream, Outcome, open_loop, poisson_times
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.static_batching import StaticBatcher
from headrace.benchmarks.suite import started
from headrace.chassis.config import load_settings
from headrace.executor.engines.protocol import Engine
from headrace.executor.engines.registry import load_engine

OURS = "headrace"
PADDED = "static"
RAGGED = "static, ragged"
CANDIDATES = ((PADDED, 8), (PADDED, 16), (PADDED, 32), (RAGGED, 16))
"""Batch sizes by kind. Ragged batches of 8, 16 and 64 came within a tenth of each other."""
BURST = 128
LOAD = 0.8
WINDOWS = 2
Lengths = Iterator[tuple[int, int]]


async def run(lab: Lab) -> Report:
    """A burst for each system and batch size, then the arrivals for the suite and the best static one."""
    prompts, drawn = lab.prompts(), lengths(lab.workloads, lab.seed)
    engine = await asyncio.to_thread(load_engine, load_settings().executor, lab.entry)
    rates: dict[str, list[float]] = {}
    latencies: dict[str, list[list[Outcome]]] = {}
    try:
        async with started(lab.model, lab.log("suite")) as suite:
            for number in range(lab.rounds):
                burst = [_arrival(prompts, drawn, 0.0) for _ in range(BURST)]
                lab.say(f"round {number + 1} of {lab.rounds}: a burst of {BURST}, {OURS}")
                rates.setdefault(OURS, []).append(await _burst_rate(suite.stream, burst))
                for kind, size in CANDIDATES:
                    lab.say(f"round {number + 1} of {lab.rounds}: a burst of {BURST}, {static_name(kind, size)}")
                    async with static_batches(engine, kind, size) as stream:
                        rates.setdefault(static_name(kind, size), []).append(await _burst_rate(stream, burst))
            best = max(
                (each for each in CANDIDATES if each[0] == PADDED), key=lambda each: sum(rates[static_name(*each)])
            )
            per_request = sum(each.max_tokens for each in burst) / BURST
            rate = LOAD * sum(rates[OURS]) / lab.rounds / per_request
            window_s = WINDOWS * lab.window_s
            for number in range(lab.rounds):
                times = poisson_times(rate, window_s, lab.seed + number)
                arrivals = [_arrival(prompts, drawn, at_s) for at_s in times]
                lab.say(f"round {number + 1} of {lab.rounds}: {rate:.2f} requests/s, {OURS}, then {static_name(*best)}")
                latencies.setdefault(OURS, []).append(await open_loop(suite.stream, arrivals, window_s))
                async with static_batches(engine, *best) as stream:
                    latencies.setdefault(static_name(*best), []).append(await open_loop(stream, arrivals, window_s))
    finally:
        engine.close()
    return report(lab, rates, latencies, rate)


def static_name(kind: str, size: int) -> str:
    return f"{kind}, {size}"


def lengths(workloads: Path | None, seed: int) -> Lengths:
    """Prompt and answer lengths without end."""
    drawn = random.Random(seed)
    _, recorded = recording(workloads, seed)
    while True:
        yield drawn.choice(recorded)


def _arrival(prompts: Prompts, drawn: Lengths, at_s: float) -> Arrival:
    prompt_tokens, answer_tokens = next(drawn)
    return Arrival(at_s, prompts.draw(prompt_tokens), answer_tokens, "normal")


@asynccontextmanager
async def static_batches(engine: Engine, kind: str, size: int) -> AsyncIterator[ClassStream]:
    """The stream of static batches on the bare engine."""
    batcher = StaticBatcher(engine, size, sum(MOST), padded=kind == PADDED)
    serving = asyncio.create_task(batcher.run())
    try:
        yield batcher.stream
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _burst_rate(stream: ClassStream, burst: list[Arrival]) -> float:
    """Output tokens a second until the last answer has ended."""
    outcomes = await open_loop(stream, burst, float("inf"))
    return sum(each.num_tokens for each in outcomes) / max(each.ended_s for each in outcomes)


def report(
    lab: Lab, rates: dict[str, list[float]], latencies: dict[str, list[list[Outcome]]], requests_per_s: float
) -> Report:
    """Means over the rounds' bursts; percentiles over all rounds' answers together."""
    means = {name: sum(values) / len(values) for name, values in rates.items()}
    best = next(name for name in latencies if name != OURS)
    ragged = max(mean for name, mean in means.items() if name.startswith(RAGGED))
    whole = {name: sorted(each.total_s for r in rounds for each in r) for name, rounds in latencies.items()}
    first = {name: sorted(each.ttft_s for r in rounds for each in r) for name, rounds in latencies.items()}
    rows = [
        Row(
            name,
            {
                "tokens/s": f"{mean:,.0f}",
                "bursts": " ".join(f"{each:,.0f}" for each in rates[name]),
                "p50 ms": _ms(whole.get(name), 0.5),
                "p99 ms": _ms(whole.get(name), 0.99),
                "TTFT p99 ms": _ms(first.get(name), 0.99),
            },
        )
        for name, mean in means.items()
    ]
    raw: dict[str, Any] = {
        "tokens_per_s": rates,
        "latencies": {name: [[asdict(o) for o in r] for r in rounds] for name, rounds in latencies.items()},
    }
    return Report(
        "static",
        [
            Figure("static.throughput_ratio", means[OURS] / means[best]),
            Figure("static.p99_ratio", _at(whole[OURS], 0.99) / _at(whole[best], 0.99)),
        ],
        rows,
        settings=lab.settings() | {"shrink": SHRINK, "most": MOST, "load": LOAD, "requests_per_s": requests_per_s},
        raw=raw,
        notes=[
            f"p50 and p99 of whole answers at {requests_per_s:.2f} requests/s, {LOAD:.0%} of what the suite can do",
            f"against ragged static batches, throughput is {means[OURS] / ragged:.2f} times as high",
        ],
    )


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _ms(values: list[float] | None, share: float) -> str:
    return f"{_at(values, share) * 1000:,.0f}" if values else "–"
