"""exact: every answer alone against the same request in random company: tokens and logprobs must be equal, bit for bit.

Alone, nothing is cached. Company joins and leaves at random: requests start at random times, so that prompts are
prefilled in chunks beside running answers, and others, not compared, are cancelled in mid-answer. Many begin alike, so
that they find others' blocks in the prefix cache; slots and KV memory are few and classes differ, so that some displace
others, who then lose their KV and have it computed again. What that costs is the throughput of `saturate` against a
suite that promises nothing of the kind.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.measure import median, saturate_suite
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.suite import Suite, started
from headrace.client.scheduler_admin import SchedulerAdmin
from headrace.client.values import Qos, SamplingOptions, TokenLogprobs

EXACT, NOT_EXACT = "exact", "not exact"
PROMPT_TOKENS = (2, 700)
OUTPUT_TOKENS = (1, 64)
CLASSES: tuple[Qos, ...] = ("realtime", "normal", "normal", "batch")
NUM_PREFIXES = 4
PREFIX_TOKENS = (48, 192)
ALONE = {"HEADRACE_EXECUTOR__PREFIX_CACHE": "false"}
CROWDED = {"HEADRACE_EXECUTOR__NUM_SLOTS": "12", "HEADRACE_EXECUTOR__KV_BYTES": "90000000"}
"""Memory for some 120 blocks: twelve requests of middling length want more."""
INEXACT = {"HEADRACE_EXECUTOR__EXACT": "false"}
JOIN_WITHIN_S = 0.1
"""A request of the crowd starts up to this long, times the number of requests, after the first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be asked again. `leaves_after` tokens the caller hangs up (None: stays)."""

    prompt: tuple[int, ...]
    sampling: SamplingOptions
    qos: Qos = "normal"
    leaves_after: int | None = None


@dataclass(frozen=True, slots=True)
class Got:
    """An answer, as it is compared."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    cached_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a crowd's requests got, and how many displacements there were among all that were in it."""

    answers: list[Got]
    num_displaced: int


async def run(lab: Lab) -> Report:
    """`num_requests` requests alone, then `rounds` times in a crowd with as many that leave; then the cost."""
    random_ = random.Random(lab.seed)
    prompts = lab.prompts()
    prefixes = [prompts.draw(random_.randint(*PREFIX_TOKENS)) for _ in range(NUM_PREFIXES)]
    requests = [_draw(_prompt(prompts, prefixes, random_), random_) for _ in range(lab.num_requests)]
    async with started(lab.model, lab.log("suite"), ALONE) as suite:
        lab.say(f"{len(requests)} requests alone, one after the other")
        alone = [await ask(suite, request) for request in requests]
    crowds = []
    async with started(lab.model, lab.log("suite"), CROWDED) as suite, SchedulerAdmin(suite.scheduler) as admin:
        for number in range(lab.rounds):
            lab.say(f"crowd {number + 1} of {lab.rounds}")
            leavers = [_leaver(_prompt(prompts, prefixes, random_), random_) for _ in requests]
            before = (await admin.status()).tally["displaced"]
            answers = await _crowd(suite, requests, leavers, random_)
            crowds.append(Crowd(answers, (await admin.status()).tally["displaced"] - before))
    return report(lab, requests, alone, crowds, await _rates(lab, prompts))


async def _rates(lab: Lab, prompts: Prompts) -> dict[str, list[float]]:
    """Saturated tokens a second, exact and not, in turns."""
    rates: dict[str, list[float]] = {EXACT: [], NOT_EXACT: []}
    async with (
        started(lab.model, lab.log("suite")) as exact,
        started(lab.model, lab.log("suite-inexact"), INEXACT) as inexact,
    ):
        for number in range(lab.rounds):
            for name, suite in ((EXACT, exact), (NOT_EXACT, inexact)):
                lab.say(f"saturated, {name}, {number + 1} of {lab.rounds}")
                rates[name].append((await saturate_suite(suite, prompts, lab, lab.window_s)).tokens_per_s)
    return rates


def _prompt(prompts: Prompts, prefixes: Sequence[list[int]], random_: random.Random) -> list[int]:
    """Every second one begins like others."""
    prompt = prompts.draw(_length(random_))
    return random_.choice(prefixes) + prompt if random_.random() < 0.5 else prompt


async def ask(suite: Suite, request: Asked) -> Got:
    """The whole answer, or what had come when the caller left."""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    cached_tokens = 0
    pieces = suite.client.stream(suite.model, request.prompt, qos=request.qos, **request.sampling)
    async for piece in pieces:
        tokens += piece.token_ids
        logprobs += piece.logprobs
        cached_tokens = piece.usage.cached_prompt_tokens if piece.usage else cached_tokens
        if request.leaves_after is not None and len(tokens) >= request.leaves_after:
            break
    if isinstance(pieces, AsyncGenerator):
        await pieces.aclose()  # hangs up now, not when the iterator is collected
    return Got(tuple(tokens), tuple(logprobs), cached_tokens)


async def _crowd(
    suite: Suite, requests: Sequence[Asked], leavers: Sequence[Asked], random_: random.Random
) -> list[Got]:
    within_s = JOIN_WITHIN_S * len(requests)

    async def join(request: Asked, delay_s: float) -> Got:
        await asyncio.sleep(delay_s)
        return await ask(suite, request)

    async with asyncio.TaskGroup() as group:
        everybody = [
            group.create_task(join(request, random_.uniform(0, within_s))) for request in (*requests, *leavers)
        ]
    return [task.result() for task in everybody[: len(requests)]]


def _length(random_: random.Random) -> int:
    """Short prompts mostly, some longer than a step holds."""
    low, high = PROMPT_TOKENS
    return round(low + (high - low) * random_.random() ** 2)


def _draw(prompt: list[int], random_: random.Random) -> Asked:
    """Every second request samples, with a seed of its own; the others are greedy."""
    sampling: SamplingOptions = {
        "max_tokens": random_.randint(*OUTPUT_TOKENS),
        "ignore_eos": True,
        "logprobs": 1,
        "temperature": 0.0,
        "seed": random_.getrandbits(32),
    }
    if random_.random() < 0.5:
        sampling |= {"temperature": 0.8, "top_p": 0.95}
    return Asked(tuple(prompt), sampling, random_.choice(CLASSES))


def _leaver(prompt: list[int], random_: random.Random) -> Asked:
    asked = _draw(prompt, random_)
    return replace(asked, leaves_after=random_.randint(1, asked.sampling["max_tokens"]))


def mismatched(alone: Sequence[Got], crowd: Sequence[Got]) -> list[int]:
    """Which answers differ in any token or any bit of a logprob."""
    return [index for index, (one, other) in enumerate(zip(alone, crowd, strict=True)) if one != other]


def report(
    lab: Lab,
    requests: Sequence[Asked],
    alone: Sequence[Got],
    crowds: Sequence[Crowd],
    rates: Mapping[str, Sequence[float]],
) -> Report:
    """Counts answers that differ in any crowd."""
    wrong = [mismatched(alone, crowd.answers) for crowd in crowds]
    exact, inexact = median(rates[EXACT]), median(rates[NOT_EXACT])
    compared = len(alone) * len(crowds)
    tokens = sum(len(got.token_ids) for got in alone) * len(crowds)
    rows = [
        Row(
            f"crowd {number + 1}",
            {
                "answers": str(len(alone)),
                "mismatches": str(len(indices)),
                "from the cache": f"{sum(got.cached_tokens for got in crowd.answers):,} tokens",
                "displacements": str(crowd.num_displaced),
            },
        )
        for number, (indices, crowd) in enumerate(zip(wrong, crowds, strict=True))
    ]
    rows += [Row(name, {"tokens/s": " ".join(f"{each:,.0f}" for each in taken)}) for name, taken in rates.items()]
    return Report(
        "exact",
        [
            Figure("exact.mismatches", float(sum(map(len, wrong))) if compared else None),
            Figure("exact.cost", 1 - exact / inexact if exact is not None and inexact else None),
        ],
        rows,
        settings=lab.settings()
        | {"requests": len(requests), "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        raw={
            "saturated": {name: list(taken) for name, taken in rates.items()},
            "mismatched": [
                [_difference(requests[i], alone[i], crowds[n].answers[i]) for i in indices]
                for n, indices in enumerate(wrong)
            ],
        },
        notes=[f"{compared} answers with {tokens} tokens compared; each has its tokens and two logprobs a token"],
    )


def _difference(request: Asked, alone: Got, crowd: Got) -> dict[str, Any]:
    """For the record: the request and where its answers part."""
    pairs = zip(
        zip(alone.token_ids, alone.logprobs, strict=False),
        zip(crowd.token_ids, crowd.logprobs, strict=False),
        strict=False,
    )
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    return {
        "prompt_tokens": len(request.prompt),
        "sampling": request.sampling,
        "first_difference": first,
        "alone": asdict(alone),
        "crowd": asdict(crowd),
    }
