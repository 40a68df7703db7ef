"""precision: what a token costs in each precision of the model, every stream busy, and how well each predicts a text.

Each variant is a suite of its own; they are measured in turns while the others idle. A token's cost is the machine's
time for an output token and its share of the prompts: the window over the tokens that came out of it.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from headrace.benchmarks.closed_loop import Window
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, Lab
from headrace.benchmarks.measure import median, saturate_suite, window_json
from headrace.benchmarks.perplexity import TEXT, perplexity
from headrace.benchmarks.suite import started
from headrace.chassis.config import load_settings
from headrace.executor.engines.registry import load_engine


@dataclass(frozen=True, slots=True)
class Variant:
    """The settings of one executor."""

    precision: str
    kv_precision: str = "auto"

    @property
    def name(self) -> str:
        return self.precision if self.kv_precision == "auto" else f"{self.precision}, KV {self.kv_precision}"


@dataclass(frozen=True, slots=True)
class Quality:
    """Of a variant alone: perplexity, and bytes of KV a token."""

    perplexity: float
    kv_token_bytes: float


WHOLE, CHEAP = Variant("fp32"), Variant("int8")
VARIANTS = (WHOLE, Variant("bf16"), CHEAP, Variant("int8", "u8"))


async def run(lab: Lab) -> Report:
    """Raises EngineNotReady where the model is not there in one of the precisions, Unavailable where a suite does not
    start."""
    qualities: dict[Variant, Quality] = {}
    for variant in VARIANTS:
        lab.say(f"perplexity in {variant.name}")
        qualities[variant] = await asyncio.to_thread(_quality, lab, variant)
    windows: dict[Variant, list[Window]] = {variant: [] for variant in VARIANTS}
    prompts = lab.prompts()
    async with AsyncExitStack() as stack:
        suites = {
            variant: await stack.enter_async_context(
                started(lab.model, lab.log(f"suite-{number}"), _environment(variant))
            )
            for number, variant in enumerate(VARIANTS)
        }
        for number in range(lab.rounds):
            for variant, suite in suites.items():
                lab.say(f"round {number + 1} of {lab.rounds}: {variant.name}")
                windows[variant].append(await saturate_suite(suite, prompts, lab, lab.window_s))
    return report(lab, windows, qualities)


def _environment(variant: Variant) -> dict[str, str]:
    return {
        "HEADRACE_EXECUTOR__PRECISION": variant.precision,
        "HEADRACE_EXECUTOR__KV_PRECISION": variant.kv_precision,
    }


def _quality(lab: Lab, variant: Variant) -> Quality:
    executor = {"precision": variant.precision, "kv_precision": variant.kv_precision, "kv_bytes": 2**28}
    engine = load_engine(load_settings(overrides={"executor": executor}).executor, lab.entry)
    try:
        token_ids = Tokenizer.from_file(str(lab.entry.tokenizer)).encode(TEXT).ids
        spec = engine.spec
        return Quality(perplexity(engine, np.array(token_ids, np.int64)), spec.kv_bytes_per_block / spec.block_tokens)
    finally:
        engine.close()


def report(lab: Lab, windows: dict[Variant, list[Window]], qualities: dict[Variant, Quality]) -> Report:
    """Medians over the rounds; `cost_cut` is the share by which a token in int8 is cheaper than in fp32."""
    rates = {variant: median([window.tokens_per_s for window in taken]) for variant, taken in windows.items()}
    whole, cheap = rates[WHOLE], rates[CHEAP]
    cut = 1 - whole / cheap if whole and cheap else None
    rows = [
        Row(
            variant.name,
            {
                "tokens/s": f"{rate:,.0f}" if rate else "–",
                "ms a token": f"{1000 / rate:.2f}" if rate else "–",
                "against fp32": f"{whole / rate - 1:+.0%}" if rate and whole else "–",
                "perplexity": f"{qualities[variant].perplexity:.2f}",
                "KV kB a token": f"{qualities[variant].kv_token_bytes / 1000:.1f}",
            },
            "not exact" if variant.kv_precision == "u8" else "",
        )
        for variant, rate in rates.items()
    ]
    return Report(
        "precision",
        [Figure("precision.cost_cut", cut)],
        rows,
        settings=lab.settings() | {"streams": NUM_STREAMS},
        raw={
            "windows": {variant.name: [window_json(each) for each in taken] for variant, taken in windows.items()},
            "perplexity": {variant.name: quality.perplexity for variant, quality in qualities.items()},
        },
    )
