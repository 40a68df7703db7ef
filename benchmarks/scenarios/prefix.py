"""prefix: prompts that grow turn by turn, with the prefix cache on and off: time to first token, and what was cached.

One request at a time, conversations in turns, so that nothing but the cache differs. The bound is what a cache without
end and without blocks would have found: of each prompt the longest beginning that any earlier one had too.
"""

import gzip
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.suite import Suite, started
from headrace.benchmarks.texts import sentences
from headrace.core.prefix import chained

ON, OFF = "cache on", "cache off"
RECORDED = "agent_conversation_prompts.jsonl.gz"
LONGEST_TOKENS = 4000
"""A conversation ends before the first prompt beyond this: the model's context is finite."""
NUM_CONVERSATIONS = 6
"""Take turns at a time."""
ALL_TOKENS = 60_000
"""Of all prompts together: half a minute of prefills on an idle machine of two cores."""
WARM_REQUESTS = 3
_TURNS = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt's outcome."""

    prompt_tokens: int
    cached_tokens: int
    ttft_s: float


async def run(lab: Lab) -> Report:
    """All prompts with the cache off, then all with it on. `rounds` and `window_s` count for nothing here."""
    prompts = conversations(lab)
    tokens = sum(map(len, prompts))
    outcomes: dict[str, list[Asked]] = {}
    for name, on in ((OFF, "false"), (ON, "true")):
        async with started(lab.model, lab.log("suite"), {"HEADRACE_EXECUTOR__PREFIX_CACHE": on}) as suite:
            lab.say(f"{len(prompts)} prompts of {tokens} tokens in all, {name}")
            for warm in lab.prompts().draw_many(WARM_REQUESTS, 128):
                await _ask(suite, warm)
            outcomes[name] = [await _ask(suite, prompt) for prompt in prompts]
    return report(lab, prompts, outcomes)


async def _ask(suite: Suite, prompt: Sequence[int]) -> Asked:
    begun, ttft_s, cached = time.perf_counter(), 0.0, 0
    async for piece in suite.client.stream(suite.model, prompt, max_tokens=2, ignore_eos=True):
        ttft_s = ttft_s or time.perf_counter() - begun
        if piece.usage:
            cached = piece.usage.cached_prompt_tokens
    return Asked(len(prompt), cached, ttft_s)


def conversations(lab: Lab) -> list[list[int]]:
    """Prompts as token ids in the order in which they are asked: every conversation's turn after turn."""
    tokenizer = Tokenizer.from_file(str(lab.entry.tokenizer))
    texts = _recorded(lab.workloads / "prompts" / RECORDED) if lab.workloads else _made_up(lab.seed)
    lanes: list[Iterator[list[int]]] = []
    chosen: list[list[int]] = []
    total = 0
    source = iter(texts)
    while total < ALL_TOKENS:
        while len(lanes) < NUM_CONVERSATIONS and (turns := next(source, None)) is not None:
            lanes.append(_within(tokenizer, turns))
        if not lanes:
            break
        for lane in list(lanes):
            prompt = next(lane, None)
            if prompt is None:
                lanes.remove(lane)
            elif total < ALL_TOKENS:
                chosen.append(prompt)
                total += len(prompt)
    return chosen


def _within(tokenizer: Tokenizer, turns: Sequence[str]) -> Iterator[list[int]]:
    for text in turns:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) > LONGEST_TOKENS:
            return
        if ids:
            yield ids


def _recorded(file: Path) -> list[list[str]]:
    """The recorded conversations, in the file's order."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        [row["input"] for row in sorted(turns, key=lambda row: float(row["t_ms"]))]
        for _, turns in itertools.groupby(rows, lambda row: row["conversation"])
    ]


def _made_up(seed: int) -> Iterator[list[str]]:
    """Conversations under a few system prompts, each turn with all that was said before."""
    drawn, words = random.Random(seed), sentences(seed)

    def say(count: int) -> str:
        return " ".join(itertools.islice(words, count))

    systems = [say(40) for _ in range(3)]
    while True:
        said = f"system: {drawn.choice(systems)}"
        turns = []
        for _ in range(drawn.randint(2, _TURNS)):
            said += f"\nuser: {say(drawn.randint(2, 12))}"
            turns.append(said)
            said += f"\nassistant: {say(drawn.randint(2, 20))}"
        yield turns


def bounds(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Of each prompt, how many first tokens an earlier one had too; its last is always computed."""
    known: set[bytes] = set()
    shared = []
    for prompt in prompts:
        digests = list(chained(b"", b"".join(token.to_bytes(4, "little") for token in prompt), 1))
        length = next((index for index, digest in enumerate(digests) if digest not in known), len(digests))
        shared.append(min(length, len(prompt) - 1))
        known.update(digests)
    return shared


def report(lab: Lab, prompts: Sequence[Sequence[int]], outcomes: dict[str, list[Asked]]) -> Report:
    """Times are compared over the prompts of which the cache had something."""
    total = sum(map(len, prompts))
    bound = sum(bounds(prompts)) / total
    rate = sum(each.cached_tokens for each in outcomes[ON]) / total
    hits = [index for index, each in enumerate(outcomes[ON]) if each.cached_tokens]
    ttft_s = {
        name: statistics.median(asked[index].ttft_s for index in hits) for name, asked in outcomes.items() if hits
    }
    rows = [
        Row(
            name,
            {
                "TTFT p50 ms at hits": f"{ttft_s[name] * 1000:,.1f}" if hits else "–",
                "TTFT p50 ms of all": f"{statistics.median(each.ttft_s for each in asked) * 1000:,.1f}",
                "prompt tokens cached": f"{sum(each.cached_tokens for each in asked) / total:.1%}",
            },
        )
        for name, asked in outcomes.items()
    ]
    return Report(
        "prefix",
        [
            Figure("prefix.ttft_ratio", ttft_s[OFF] / ttft_s[ON] if hits else None),
            Figure("prefix.hit_gap_points", 100 * (bound - rate)),
        ],
        [*rows, Row("unlimited cache", {"prompt tokens cached": f"{bound:.1%}"})],
        settings=lab.settings()
        | {"conversations_at_a_time": NUM_CONVERSATIONS, "longest_tokens": LONGEST_TOKENS, "all_tokens": ALL_TOKENS},
        raw={name: [asdict(each) for each in asked] for name, asked in outcomes.items()},
        notes=[f"{len(prompts)} prompts of {total:,} tokens, {len(hits)} of them hits; the bound knows no blocks"],
    )
