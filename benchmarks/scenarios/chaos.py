"""chaos: executor, scheduler and gateway are killed by turns under load; what becomes of the answers.

`headrace up --restart` starts each again. An error is excused only where the call met a gateway that had been killed:
its streams go with it. Every answer that met any loss is asked for again in peace and must be the same, token by token.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, OUTPUT_TOKENS, PROMPT_TOKENS, Lab
from headrace.benchmarks.process_time import pids
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.suite import Suite, started
from headrace.chassis.config import TransportSettings
from headrace.core.errors import HeadraceError, Unavailable
from headrace.standalone.readiness import await_serving

VICTIMS = ("executor", "scheduler", "gateway")
WINDOWS = 3
"""The load lasts so many of the lab's windows: a minute unless told otherwise."""
BETWEEN_KILLS_S = 20.0
CAPACITY_REQUESTS = 96
LOAD = 0.8
BACK_S = 60.0
ANSWER_S = 300.0
"""Longest wait for an answer: what takes longer is lost."""
COMPARED_AT_ONCE = 16
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Kill:
    """A service that was killed, and from when to when it did not serve, in seconds since the beginning."""

    service: str
    at_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what it brought, and the reason of the error that it ended with, if any."""

    prompt: tuple[int, ...]
    asked_s: float
    ended_s: float
    token_ids: tuple[int, ...]
    error: str = ""
    unavailable: bool = False

    def met(self, kills: Sequence[Kill], *services: str) -> bool:
        return any(
            kill.service in services and self.asked_s <= kill.back_s and kill.at_s <= self.ended_s for kill in kills
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """What the calls come to. `cut` met a killed gateway, `twice` have another answer than in peace."""

    whole: int
    cut: int
    lost: int
    errors: int
    compared: int
    twice: int


async def run(lab: Lab) -> Report:
    """Measures the capacity, then loads for WINDOWS windows, then asks again."""
    duration_s, prompts = WINDOWS * lab.window_s, lab.prompts()
    async with started(lab.model, lab.log("suite"), options=("--restart",)) as suite:
        lab.say("capacity")
        capacity = await _capacity(suite, prompts)
        lab.say(f"{LOAD:.0%} of {capacity:.1f} requests/s for {duration_s:g} s, with kills")
        begun, pending = time.perf_counter(), set[float]()
        async with asyncio.TaskGroup() as tasks:
            killed = asyncio.Event()
            killing = tasks.create_task(_kill_by_turns(lab, suite, pending, begun, duration_s))
            killing.add_done_callback(lambda _: killed.set())
            loading = tasks.create_task(
                _load(suite, prompts, random.Random(lab.seed), pending, begun, duration_s, LOAD * capacity, killed)
            )
        kills, calls = killing.result(), loading.result()
        disturbed = [call for call in calls if not call.error and call.met(kills, *VICTIMS)]
        lab.say(f"{len(disturbed)} answers once more, in peace")
        again = await _answers(suite, [call.prompt for call in disturbed], begun, COMPARED_AT_ONCE)
    return report(lab, capacity, kills, calls, tally(kills, calls, disturbed, again))


async def _capacity(suite: Suite, drawn: Prompts) -> float:
    """Requests a second with NUM_STREAMS at once, ramps included."""
    prompts = [tuple(prompt) for prompt in drawn.draw_many(CAPACITY_REQUESTS, PROMPT_TOKENS)]
    begun = time.perf_counter()
    await _answers(suite, prompts, begun, NUM_STREAMS)
    return CAPACITY_REQUESTS / (time.perf_counter() - begun)


async def _kill_by_turns(lab: Lab, suite: Suite, pending: set[float], begun: float, duration_s: float) -> list[Kill]:
    """At even distances, or later where answers that met the last kill are `pending`: the next one, of the gateway, may
    not hide what became of them."""
    addresses = {"executor": suite.executor, "scheduler": suite.scheduler, "gateway": suite.gateway}
    num_kills = max(len(VICTIMS), int(duration_s / BETWEEN_KILLS_S))
    kills = []
    for number in range(num_kills):
        await asyncio.sleep(max(0.0, begun + duration_s * (number + 0.5) / num_kills - time.perf_counter()))
        victim, at_s = VICTIMS[number % len(VICTIMS)], time.perf_counter() - begun
        os.kill(pids(suite.pid)[victim], signal.SIGKILL)
        await await_serving(addresses[victim], TransportSettings(), BACK_S)
        kills.append(Kill(victim, at_s, time.perf_counter() - begun))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BACK_S):
                while any(asked_s <= kills[-1].back_s for asked_s in pending):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        lab.say(f"{victim} killed at {at_s:.0f} s, back after {kills[-1].back_s - at_s:.1f} s")
    return kills


async def _load(
    suite: Suite,
    prompts: Prompts,
    drawn: random.Random,
    pending: set[float],
    begun: float,
    duration_s: float,
    per_s: float,
    killed: asyncio.Event,
) -> list[Call]:
    """Poisson arrivals until the time is over and all kills are done; `pending` holds when those were asked that have
    not ended."""
    at_s = 0.0

    async def one(prompt: tuple[int, ...], asked_s: float) -> Call:
        pending.add(asked_s)
        try:
            return await _call(suite, prompt, begun)
        finally:
            pending.discard(asked_s)

    async with asyncio.TaskGroup() as tasks:
        calls = []
        while (at_s := at_s + drawn.expovariate(per_s)) < duration_s or not killed.is_set():
            prompt = tuple(prompts.draw(PROMPT_TOKENS))
            await asyncio.sleep(max(0.0, begun + at_s - time.perf_counter()))
            calls.append(tasks.create_task(one(prompt, at_s)))
    return [call.result() for call in calls]


async def _call(suite: Suite, prompt: tuple[int, ...], begun: float) -> Call:
    token_ids: list[int] = []
    asked_s, error, unavailable = time.perf_counter() - begun, "", False
    try:
        async for piece in suite.client.stream(
            suite.model, prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, timeout_s=ANSWER_S
        ):
            token_ids += piece.token_ids
    except HeadraceError as failed:
        error, unavailable = failed.reason, isinstance(failed, Unavailable)
    return Call(prompt, asked_s, time.perf_counter() - begun, tuple(token_ids), error, unavailable)


async def _answers(suite: Suite, prompts: Sequence[tuple[int, ...]], begun: float, at_once: int) -> list[Call]:
    """In the prompts' order."""
    turns = asyncio.Semaphore(at_once)

    async def one(prompt: tuple[int, ...]) -> Call:
        async with turns:
            return await _call(suite, prompt, begun)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one(prompt)) for prompt in prompts]
    return [task.result() for task in asked]


def tally(kills: Sequence[Kill], calls: Sequence[Call], disturbed: Sequence[Call], again: Sequence[Call]) -> Tally:
    """`again` are the answers to `disturbed` in peace, in order. An answer is lost where it ended without an error and
    short; an error counts where no killed gateway excuses it."""
    cut = [call for call in calls if call.unavailable and call.met(kills, "gateway")]
    errors = sum(bool(call.error) for call in calls) - len(cut)
    ended = [call for call in calls if not call.error]
    return Tally(
        whole=sum(len(call.token_ids) == OUTPUT_TOKENS for call in ended),
        cut=len(cut),
        lost=sum(len(call.token_ids) < OUTPUT_TOKENS for call in ended),
        errors=errors,
        compared=len(disturbed),
        twice=sum(
            len(call.token_ids) > OUTPUT_TOKENS or (not peace.error and call.token_ids != peace.token_ids)
            for call, peace in zip(disturbed, again, strict=True)
        ),
    )


def report(lab: Lab, capacity: float, kills: Sequence[Kill], calls: Sequence[Call], found: Tally) -> Report:
    """Lost are also those whose error nothing excuses: they had been accepted."""
    away = ", ".join(f"{kill.service} {kill.back_s - kill.at_s:.1f} s" for kill in kills)
    raw: list[dict[str, Any]] = [
        {"asked_s": call.asked_s, "ended_s": call.ended_s, "num_tokens": len(call.token_ids), "error": call.error}
        for call in calls
    ]
    return Report(
        "chaos",
        [
            Figure("chaos.lost", float(found.lost + found.errors)),
            Figure("chaos.twice", float(found.twice)),
            Figure("chaos.client_errors", float(found.errors)),
        ],
        [
            Row(
                "headrace",
                {
                    "asked": str(len(calls)),
                    "whole": str(found.whole),
                    "cut with their gateway": str(found.cut),
                    "compared": str(found.compared),
                },
                f"killed, and away for: {away}",
            )
        ],
        settings=lab.settings() | {"load": LOAD, "duration_s": WINDOWS * lab.window_s},
        raw={"capacity_per_s": capacity, "kills": [asdict(kill) for kill in kills], "calls": raw, **asdict(found)},
    )
