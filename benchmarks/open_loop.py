"""An open loop: requests of several classes arrive at given times, whether or not earlier ones have been answered.

Standard library only: peer drivers run it inside their own environments, so every system is measured by this code.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

ClassStream = Callable[..., AsyncIterator[int]]
"""Takes prompt token ids, a number of tokens to generate and a class; yields how many tokens each piece brought."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come: when, since the beginning, and of which class."""

    at_s: float
    prompt: Sequence[int]
    max_tokens: int
    qos: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole answer: times since it was asked, when it ended, and its tokens, of them those within the window."""

    qos: str
    ttft_s: float
    total_s: float
    ended_s: float
    num_tokens: int
    window_tokens: int


async def open_loop(
    stream: ClassStream,
    arrivals: Sequence[Arrival],
    window_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Outcome]:
    """Sends every request at its time and waits for all answers, those after the window too.

    Raises whatever `stream` raises (as an ExceptionGroup).
    """
    begun = clock()
    outcomes: list[Outcome] = []

    async def send(arrival: Arrival) -> None:
        await asyncio.sleep(max(0.0, begun + arrival.at_s - clock()))
        asked, first, total, within = clock(), 0.0, 0, 0
        async for num_tokens in stream(arrival.prompt, arrival.max_tokens, arrival.qos):
            now = clock()
            if num_tokens and not total:
                first = now
            total += num_tokens
            within += num_tokens if now - begun < window_s else 0
        ended = clock()
        if total != arrival.max_tokens:
            raise RuntimeError(f"an answer has {total} tokens where {arrival.max_tokens} were asked for")
        outcomes.append(Outcome(arrival.qos, first - asked, ended - asked, ended - begun, total, within))

    async with asyncio.TaskGroup() as group:
        for arrival in arrivals:
            group.create_task(send(arrival))
    return outcomes


def poisson_times(rate: float, window_s: float, seed: int) -> list[float]:
    """Arrival times of a Poisson process of so many a second, up to the window's end."""
    drawn, times, now = random.Random(seed), list[float](), 0.0
    while (now := now + drawn.expovariate(rate)) < window_s:
        times.append(now)
    return times


def steady_rate(ended_s: Iterable[float]) -> float:
    """Answers a second over the middle half of a burst's answers, where neither its beginning nor its end shows."""
    ends = sorted(ended_s)
    first, last = len(ends) // 4, 3 * len(ends) // 4
    return (last - first) / (ends[last] - ends[first])
