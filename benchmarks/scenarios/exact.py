"""exact: every answer alone against the same request in random company: tokens and logprobs must be equal, bit for bit.

Company joins and leaves at random: requests start at random times, so that prompts are prefilled in chunks beside
running answers, and others, not compared, are cancelled in mid-answer.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.suite import Suite, started
from headrace.client.values import SamplingOptions, TokenLogprobs

PROMPT_TOKENS = (2, 700)
OUTPUT_TOKENS = (1, 64)
JOIN_WITHIN_S = 0.1
"""A request of the crowd starts up to this long, times the number of requests, after the first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be asked again. `leaves_after` tokens the caller hangs up (None: stays)."""

    prompt: tuple[int, ...]
    sampling: SamplingOptions
    leaves_after: int | None = None


@dataclass(frozen=True, slots=True)
class Got:
    """An answer, as it is compared."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


async def run(lab: Lab) -> Report:
    """`num_requests` requests alone, then `rounds` times in a crowd with as many that leave."""
    random_ = random.Random(lab.seed)
    prompts = lab.prompts()
    requests = [_draw(prompts.draw(_length(random_)), random_) for _ in range(lab.num_requests)]
    async with started(lab.model, lab.log("suite")) as suite:
        lab.say(f"{len(requests)} requests alone, one after the other")
        alone = [await ask(suite, request) for request in requests]
        crowds = []
        for number in range(lab.rounds):
            lab.say(f"crowd {number + 1} of {lab.rounds}")
            leavers = [_leaver(prompts.draw(_length(random_)), random_) for _ in requests]
            crowds.append(await _crowd(suite, requests, leavers, random_))
    return report(lab, requests, alone, crowds)


async def ask(suite: Suite, request: Asked) -> Got:
    """The whole answer, or what had come when the caller left."""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    pieces = suite.client.stream(suite.model, request.prompt, **request.sampling)
    async for piece in pieces:
        tokens += piece.token_ids
        logprobs += piece.logprobs
        if request.leaves_after is not None and len(tokens) >= request.leaves_after:
            break
    if isinstance(pieces, AsyncGenerator):
        await pieces.aclose()  # hangs up now, not when the iterator is collected
    return Got(tuple(tokens), tuple(logprobs))


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
    return Asked(tuple(prompt), sampling)


def _leaver(prompt: list[int], random_: random.Random) -> Asked:
    asked = _draw(prompt, random_)
    return Asked(asked.prompt, asked.sampling, random_.randint(1, asked.sampling["max_tokens"]))


def mismatched(alone: Sequence[Got], crowd: Sequence[Got]) -> list[int]:
    """Which answers differ in any token or any bit of a logprob."""
    return [index for index, (one, other) in enumerate(zip(alone, crowd, strict=True)) if one != other]


def report(lab: Lab, requests: Sequence[Asked], alone: Sequence[Got], crowds: Sequence[Sequence[Got]]) -> Report:
    """Counts answers that differ in any crowd."""
    wrong = [mismatched(alone, crowd) for crowd in crowds]
    compared = len(alone) * len(crowds)
    tokens = sum(len(got.token_ids) for got in alone) * len(crowds)
    rows = [
        Row(f"crowd {number + 1}", {"answers": str(len(alone)), "mismatches": str(len(indices))})
        for number, indices in enumerate(wrong)
    ]
    return Report(
        "exact",
        [Figure("exact.mismatches", float(sum(map(len, wrong))) if compared else None)],
        rows,
        settings=lab.settings()
        | {"requests": len(requests), "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        raw={
            "mismatched": [
                [_difference(requests[i], alone[i], crowds[n][i]) for i in indices] for n, indices in enumerate(wrong)
            ]
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
