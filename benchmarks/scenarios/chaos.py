"""chaos: executors, the leading scheduler and gateways are killed by turns under load; what becomes of the answers.

A fleet has two of each. A client that knows both gateways sees an error only where its stream ran through one that was
killed. Every answer that met any loss is asked for again in peace and must be the same, token by token.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.benchmarks.disturbances import VICTIMS, Disturbance, Disturber, How, met
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.fleet import Fleet, running
from headrace.benchmarks.lab import NUM_STREAMS, OUTPUT_TOKENS, PROMPT_TOKENS, Lab
from headrace.benchmarks.prompts import Prompts
from headrace.core.errors import HeadraceError, Unavailable

WINDOWS = 3
"""The load lasts so many of the lab's windows: a minute unless told otherwise."""
BETWEEN_KILLS_S = 20.0
CAPACITY_REQUESTS = 96
LOAD = 0.8
ANSWER_S = 300.0
"""Longest wait for an answer: what takes longer is lost."""
COMPARED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what it brought, and the reason of the error that it ended with, if any."""

    prompt: tuple[int, ...]
    asked_s: float
    ended_s: float
    token_ids: tuple[int, ...]
    error: str = ""
    unavailable: bool = False

    def met(self, kills: Sequence[Disturbance]) -> bool:
        """It was under way while a service was away."""
        return met(kills, self.asked_s, self.ended_s, *VICTIMS)

    def was_cut(self, kills: Sequence[Disturbance]) -> bool:
        """It ran when a gateway was killed, and failed by that. What was asked after the kill has another gateway."""
        return self.unavailable and any(
            kill.service == "gateway" and self.asked_s <= kill.at_s <= self.ended_s for kill in kills
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """What the calls come to. `cut` ran when a gateway was killed, `twice` have another answer than in peace;
    `compared` is None where an answer could not be had in peace either."""

    whole: int
    cut: int
    lost: int
    errors: int
    compared: int | None
    twice: int


async def run(lab: Lab) -> Report:
    """Measures the capacity, then loads for WINDOWS windows, then asks again."""
    duration_s, prompts = WINDOWS * lab.window_s, lab.prompts()
    async with running(lab.model, lab.log("fleet").parent) as fleet:
        lab.say("capacity")
        capacity = await _capacity(fleet, prompts)
        lab.say(f"{LOAD:.0%} of {capacity:.1f} requests/s for {duration_s:g} s, with kills")
        disturber, over = Disturber(fleet.client, fleet.target), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(
                _load(fleet, disturber, prompts, random.Random(lab.seed), duration_s, LOAD * capacity, over)
            )
            await _kill_by_turns(lab, disturber, duration_s)
            over.set()
        kills, calls = disturber.done, loading.result()
        disturbed = [call for call in calls if not call.error and call.met(kills)]
        lab.say(f"{len(disturbed)} answers once more, in peace")
        again = await _answers(fleet, [call.prompt for call in disturbed], COMPARED_AT_ONCE)
    return report(lab, capacity, kills, calls, tally(kills, calls, disturbed, again))


async def _capacity(fleet: Fleet, drawn: Prompts) -> float:
    """Requests a second with NUM_STREAMS at once, ramps included."""
    prompts = [tuple(prompt) for prompt in drawn.draw_many(CAPACITY_REQUESTS, PROMPT_TOKENS)]
    began = time.perf_counter()
    await _answers(fleet, prompts, NUM_STREAMS)
    return CAPACITY_REQUESTS / (time.perf_counter() - began)


async def _kill_by_turns(lab: Lab, disturber: Disturber, duration_s: float) -> None:
    """At even distances, or later where answers that met the last kill are still under way."""
    num_kills = max(len(VICTIMS), int(duration_s / BETWEEN_KILLS_S))
    for number in range(num_kills):
        await disturber.until(duration_s * (number + 0.5) / num_kills)
        kill = await disturber.disturb(VICTIMS[number % len(VICTIMS)], How.KILLED)
        await disturber.settled()
        lab.say(f"{kill.service} killed at {kill.at_s:.0f} s, back after {kill.back_s - kill.at_s:.1f} s")


async def _load(
    fleet: Fleet,
    disturber: Disturber,
    prompts: Prompts,
    drawn: random.Random,
    duration_s: float,
    per_s: float,
    over: asyncio.Event,
) -> list[Call]:
    """Poisson arrivals until the time is over and all kills are done."""
    at_s = 0.0
    async with asyncio.TaskGroup() as tasks:
        calls = []
        while (at_s := at_s + drawn.expovariate(per_s)) < duration_s or not over.is_set():
            prompt = tuple(prompts.draw(PROMPT_TOKENS))
            await disturber.until(at_s)
            calls.append(tasks.create_task(_call(fleet, disturber, prompt)))
    return [call.result() for call in calls]


async def _call(fleet: Fleet, disturber: Disturber, prompt: tuple[int, ...]) -> Call:
    token_ids: list[int] = []
    error, unavailable = "", False
    with disturber.call() as asked_s:
        try:
            async for piece in fleet.client.stream(
                fleet.model, prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, timeout_s=ANSWER_S
            ):
                token_ids += piece.token_ids
        except HeadraceError as failed:
            error, unavailable = failed.reason, isinstance(failed, Unavailable)
    return Call(prompt, asked_s, disturber.now_s(), tuple(token_ids), error, unavailable)


async def _answers(fleet: Fleet, prompts: Sequence[tuple[int, ...]], at_once: int) -> list[Call]:
    """In the prompts' order, undisturbed."""
    turns, clock = asyncio.Semaphore(at_once), Disturber(fleet.client, fleet.target)

    async def one(prompt: tuple[int, ...]) -> Call:
        async with turns:
            return await _call(fleet, clock, prompt)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one(prompt)) for prompt in prompts]
    return [task.result() for task in asked]


def tally(
    kills: Sequence[Disturbance], calls: Sequence[Call], disturbed: Sequence[Call], again: Sequence[Call]
) -> Tally:
    """`again` are the answers to `disturbed` in peace, in order. An answer is lost where it ended without an error and
    short; an error counts where no killed gateway excuses it."""
    cut = [call for call in calls if call.was_cut(kills)]
    errors = sum(bool(call.error) for call in calls) - len(cut)
    ended = [call for call in calls if not call.error]
    return Tally(
        whole=sum(len(call.token_ids) == OUTPUT_TOKENS for call in ended),
        cut=len(cut),
        lost=sum(len(call.token_ids) < OUTPUT_TOKENS for call in ended),
        errors=errors,
        compared=None if any(peace.error for peace in again) else len(disturbed),
        twice=sum(
            len(call.token_ids) > OUTPUT_TOKENS or call.token_ids != peace.token_ids
            for call, peace in zip(disturbed, again, strict=True)
        ),
    )


def report(lab: Lab, capacity: float, kills: Sequence[Disturbance], calls: Sequence[Call], found: Tally) -> Report:
    """Lost are also those whose error nothing excuses: they had been accepted. Where no answer met a loss, or one could
    not be compared, nothing has been shown."""
    away = ", ".join(f"{kill.service} {kill.back_s - kill.at_s:.1f} s" for kill in kills)
    raw: list[dict[str, Any]] = [
        {"asked_s": call.asked_s, "ended_s": call.ended_s, "num_tokens": len(call.token_ids), "error": call.error}
        for call in calls
    ]
    return Report(
        "chaos",
        [
            Figure("chaos.lost", float(found.lost + found.errors) if found.whole else None),
            Figure("chaos.twice", float(found.twice) if found.compared else None),
            Figure("chaos.client_errors", float(found.errors) if found.whole else None),
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
