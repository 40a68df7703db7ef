"""experts: a mixture whose experts come on demand, over places on the device and batch, beside all of them resident.

The model's weights are random and its topics are made up, so hit rates say how the cache behaves, not what a trained
model's routing would give. The link stands for PCIe: so many times slower than the memory that computes. Each setting
decodes the same prompts, and its tokens are compared with those of all resident.
"""

import asyncio

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.measure import median
from headrace.core.errors import EngineNotReady

BATCHES, SHARES = (1, 4, 16), (1.0, 0.75, 0.5, 0.25)
LINK_BYTES_PER_S = 1e9
NUM_STEPS, PROMPT_TOKENS = 24, 24


async def run(lab: Lab) -> Report:
    """Raises EngineNotReady without torch and transformers."""
    return await asyncio.to_thread(measured, lab)


def measured(lab: Lab) -> Report:
    """The same, in this thread."""
    try:
        from headrace.benchmarks import expert_decoding as decoding
    except ImportError as error:
        raise EngineNotReady(f"bench experts: {error}; install headrace[executor-torch]") from error
    rows: list[Row] = []
    raw: dict[str, object] = {}
    mismatches, half = 0, None
    model = decoding.random_model()
    num_tokens = PROMPT_TOKENS + NUM_STEPS + decoding.WARM_STEPS
    for batch in BATCHES:
        drawn = lab.prompts().draw_many(batch, num_tokens)
        texts = [decoding.of_topic(ids, number % 4) for number, ids in enumerate(drawn)]
        whole_s, expected = 0.0, None
        for share in SHARES:
            for ahead in (False, True) if share < 1 else (False,):
                num_slots = round(decoding.NUM_EXPERTS * share)
                lab.say(f"batch {batch}, {num_slots} places a layer{', ahead' if ahead else ''}")
                found = decoding.decode(model, texts, NUM_STEPS, num_slots, ahead, LINK_BYTES_PER_S)
                step_s = median(found.step_s) or 0.0
                if expected is None:
                    # the first use of each expert is a copy too: what is measured is a run in which all have come
                    whole_s, expected = _settled(found.step_s), found.token_ids
                    step_s = whole_s
                mismatches += sum(one != other for one, other in zip(found.token_ids, expected, strict=True))
                if batch == 1 and share == 0.5 and ahead:
                    half = step_s / whole_s
                stall = found.counts.stall_s / sum(found.step_s)
                values = {
                    "places": f"{num_slots} of {decoding.NUM_EXPERTS}",
                    "ahead": "yes" if ahead else "no",
                    "asked a layer": f"{found.asked_each:.1f}",
                    "hit rate": f"{found.counts.hit_rate:.2f}",
                    "early": f"{found.counts.num_early}",
                    "wasted": f"{found.counts.num_wasted}",
                    "stall": f"{stall:.0%}" if share < 1 else "–",
                    "tokens/s": f"{batch / step_s:,.1f}",
                    "against all resident": f"{whole_s / step_s:.2f} x",
                }
                rows.append(Row(f"batch {batch}", values))
                raw[f"{batch}/{num_slots}/{ahead}"] = list(found.step_s)
    return Report(
        "experts",
        [Figure("experts.mismatches", float(mismatches)), Figure("experts.slowdown_half", half)],
        rows,
        settings=lab.settings()
        | {
            "model": "OLMoE's form, random weights",
            "experts": decoding.NUM_EXPERTS,
            "experts_a_token": decoding.TOP_K,
            "layers": decoding.NUM_LAYERS,
            "expert_bytes": decoding.expert_bytes(),
            "link_bytes_per_s": LINK_BYTES_PER_S,
        },
        raw={"step_s": raw},
    )


def _settled(step_s: tuple[float, ...]) -> float:
    """The median of the faster half."""
    fast = sorted(step_s)[: max(1, len(step_s) // 2)]
    return fast[len(fast) // 2]
