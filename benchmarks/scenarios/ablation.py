"""ablation: the replay's load on our suite, each technique switched off in turn by a setting: what each is worth.

Requests are of mixed classes, so that order and displacement have something to tell apart. Each variant is started
anew for each round and warmed by a burst, so that no idle one stands beside the one that is measured.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.benchmarks.class_mix import CLASSES, draw_class
from headrace.benchmarks.conversation_lengths import MOST, SHRINK, TRACE, recording
from headrace.benchmarks.figures import Report, Row
from headrace.benchmarks.goodput import (
    INTER_TOKEN_S,
    LOAD,
    TTFT_S,
    WARM_BURST,
    WINDOWS,
    Score,
    burst,
    saturation,
    score,
)
from headrace.benchmarks.goodput import arrivals as replayed
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.open_loop import ClassStream, Outcome, open_loop
from headrace.benchmarks.scenarios.replay import PROMISE
from headrace.benchmarks.scenarios.static import RAGGED, static_batches
from headrace.benchmarks.suite import started
from headrace.chassis.config import load_settings
from headrace.core.errors import Unavailable
from headrace.executor.engines.registry import load_engine

EVERYTHING = "everything on"
STATIC = "continuous batching"
STATIC_SIZE = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """A technique and the settings that switch it off; `how` says what stands in its place."""

    technique: str
    how: str
    settings: Mapping[str, str] = field(default_factory=dict)


_NO_PACE = {"HEADRACE_EXECUTOR__REALTIME_INTER_TOKEN_MS": "0", "HEADRACE_EXECUTOR__NORMAL_INTER_TOKEN_MS": "0"}


def variants(context_tokens: int) -> tuple[Variant, ...]:
    """What is measured; the first is everything on."""
    whole = {"HEADRACE_EXECUTOR__STEP_TOKENS": str(context_tokens)}
    return (
        Variant(EVERYTHING, ""),
        Variant(STATIC, f"static ragged batches of {STATIC_SIZE} on the bare engine, without services"),
        Variant("chunked prefill and pace", "prompts whole in one step", whole | _NO_PACE),
        Variant("pace", "chunks do not shrink for running streams", _NO_PACE),
        Variant("prefix cache", "off; no prompts begin alike here", {"HEADRACE_EXECUTOR__PREFIX_CACHE": "false"}),
        Variant("displacement", "nobody makes room", {"HEADRACE_SCHEDULER__MAX_DISPLACEMENTS": "0"}),
        Variant("order by class", "first come first served", {"HEADRACE_SCHEDULER__ORDER": "fcfs"}),
        Variant("exactness", "answers may depend on company", {"HEADRACE_EXECUTOR__EXACT": "false"}),
        Variant("speculation", "no tokens guessed ahead", {"HEADRACE_EXECUTOR__SPECULATION": "0"}),
        Variant("int8 weights", "fp32, with KV in fp32", {"HEADRACE_EXECUTOR__PRECISION": "fp32"}),
    )


async def run(lab: Lab) -> Report:
    """Raises Unavailable where the suite with everything on fails; another variant is then a row with its reason."""
    recorded, prompts, window_s = recording(lab.workloads, lab.seed), lab.prompts(), WINDOWS * lab.window_s
    rounds: dict[str, list[list[Outcome]]] = {}
    missing: dict[str, str] = {}
    chosen = variants(lab.entry.info.context_tokens)
    async with _serving(lab, chosen[0]) as stream:
        lab.say("bursts: what the suite answers")
        capacity = await saturation(stream, recorded, prompts, lab.seed)
    for number in range(lab.rounds):
        load = replayed(recorded, prompts, LOAD * capacity, window_s, lab.seed + number, draw_class)
        for variant in (each for each in chosen if each.technique not in missing):
            lab.say(f"round {number + 1} of {lab.rounds}: {_title(variant)}")
            try:
                async with _serving(lab, variant) as stream:
                    await open_loop(stream, burst(recorded, prompts, WARM_BURST, lab.seed), float("inf"))
                    taken = await open_loop(stream, load, window_s)
            except Unavailable as error:
                if variant.technique == EVERYTHING:
                    raise
                missing[variant.technique] = error.message
                rounds.pop(variant.technique, None)
            else:
                rounds.setdefault(variant.technique, []).append(taken)
    return report(lab, chosen, rounds, capacity, missing)


@asynccontextmanager
async def _serving(lab: Lab, variant: Variant) -> AsyncIterator[ClassStream]:
    if variant.technique != STATIC:
        async with started(lab.model, lab.log("suite-ablation"), PROMISE | dict(variant.settings)) as suite:
            yield suite.stream
        return
    engine = await asyncio.to_thread(load_engine, load_settings().executor, lab.entry)
    try:
        async with static_batches(engine, RAGGED, STATIC_SIZE) as stream:
            yield stream
    finally:
        engine.close()


def _title(variant: Variant) -> str:
    return variant.technique if variant.technique == EVERYTHING else f"without {variant.technique}"


def report(
    lab: Lab,
    chosen: tuple[Variant, ...],
    rounds: dict[str, list[list[Outcome]]],
    capacity: float,
    missing: dict[str, str],
) -> Report:
    """Each variant's score over all rounds together, and what is gained by the technique that it lacks."""
    window_s = WINDOWS * lab.window_s
    scores = {name: score(each, window_s) for name, each in rounds.items()}
    worth = {name: gains(scores[EVERYTHING], each) for name, each in scores.items() if name != EVERYTHING}
    rows = []
    for variant in chosen:
        name = variant.technique
        if name not in scores:
            rows.append(Row(_title(variant), note=missing.get(name, "not measured")))
            continue
        gained = {f"worth: {what}": _percent(gain) for what, gain in worth.get(name, {}).items()}
        rows.append(Row(_title(variant), scores[name].values() | gained, variant.how))
    raw: dict[str, Any] = {name: [[asdict(o) for o in each] for each in taken] for name, taken in rounds.items()}
    return Report(
        "ablation",
        [],
        rows,
        settings=lab.settings()
        | {"trace": TRACE, "shrink": SHRINK, "most": MOST, "load": LOAD, "replay_s": window_s, "classes": CLASSES}
        | {"capacity_rps": capacity, "ttft_s": TTFT_S, "inter_token_s": INTER_TOKEN_S}
        | {"variants": {each.technique: PROMISE | dict(each.settings) for each in chosen}},
        raw={"outcomes": raw, "worth": worth},
        notes=[
            f"{LOAD * capacity:.2f} requests/s arrive, {LOAD:.0%} of what the suite answers with everything on",
            "worth: how much higher goodput and tokens/s, and how much lower P99 TTFT, are with the technique than "
            "without it; negative: what it costs",
            "grouping by length serves padded encoders only (headrace bench buckets); overlapping of planning and "
            "device work has no setting",
        ],
    )


def gains(with_it: Score, without: Score) -> dict[str, float | None]:
    """As shares of what is without: more goodput, more tokens a second, less P99 TTFT; None where that is nothing."""
    return {
        "goodput": with_it.goodput / without.goodput - 1 if without.goodput else None,
        "tokens/s": with_it.tokens_per_s / without.tokens_per_s - 1 if without.tokens_per_s else None,
        "TTFT p99": 1 - with_it.ttft_p99_s / without.ttft_p99_s if without.ttft_p99_s else None,
    }


def _percent(gain: float | None) -> str:
    return "–" if gain is None else f"{gain:+.1%}"
