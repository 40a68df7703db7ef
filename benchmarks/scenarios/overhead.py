"""overhead: what the suite adds to the bare engine's time to first token, and the scheduler's share at saturation.

Both sides get the same tokens, in turns, one request at a time. The suite prefills with the same engine in a process
of its own; the other side idles meanwhile.
"""

import asyncio
import statistics
import time
from typing import Any

from headrace.benchmarks.bare_engine import BareLoop
from headrace.benchmarks.closed_loop import one_by_one
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, PROMPT_TOKENS, Lab
from headrace.benchmarks.machine import num_cores
from headrace.benchmarks.measure import saturate_suite, window_json
from headrace.benchmarks.process_time import cpu_s
from headrace.benchmarks.suite import Suite, started
from headrace.chassis.config import load_settings
from headrace.executor.engines.registry import load_engine

WARM_REQUESTS = 5
OUTPUT_TOKENS = 2
"""Of each request to the suite: enough for a first piece that is not the last."""


async def run(lab: Lab) -> Report:
    """`num_requests` pairs, then one saturated window."""
    settings = load_settings().executor
    engine = await asyncio.to_thread(load_engine, settings, lab.entry)
    try:
        async with started(lab.model, lab.log("suite")) as suite:
            lab.say(f"{lab.num_requests} pairs, one request at a time")
            pairs = await _pairs(lab, suite, BareLoop(engine))
            lab.say("one saturated window")
            share = await _scheduling_share(lab, suite, settings.threads or num_cores())
    finally:
        engine.close()
    return report(lab, pairs, share)


async def _pairs(lab: Lab, suite: Suite, bare: BareLoop) -> list[tuple[float, float]]:
    prompts, pairs = lab.prompts(), list[tuple[float, float]]()
    for index in range(WARM_REQUESTS + lab.num_requests):
        prompt = prompts.draw(PROMPT_TOKENS)
        alone_s = await asyncio.to_thread(bare.first_token_s, prompt)
        (reply,) = await one_by_one(suite.stream, [prompt], OUTPUT_TOKENS)
        if index >= WARM_REQUESTS:
            pairs.append((alone_s, reply.ttft_s))
    return pairs


async def _scheduling_share(lab: Lab, suite: Suite, threads: int) -> dict[str, Any]:
    """CPU time of the whole scheduler process over the executor's inference time, while every stream is busy.

    Inference time is the executor's CPU time spread over the engine's threads. The scheduler's transport is counted as
    scheduling, so the share is an upper bound. The times span the window and its warm-up and end.
    """
    before, begun = cpu_s(suite.pid), time.perf_counter()
    window = await saturate_suite(suite, lab.prompts(), lab, lab.window_s)
    after, wall_s = cpu_s(suite.pid), time.perf_counter() - begun
    used = {name: after[name] - before.get(name, 0.0) for name in after}
    inference_s = used.get("executor", 0.0) / threads
    share = used["scheduler"] / inference_s if inference_s and "scheduler" in used else None
    return {"share": share, "cpu_s": used, "wall_s": wall_s, "window": window_json(window)}


def report(lab: Lab, pairs: list[tuple[float, float]], saturated: dict[str, Any]) -> Report:
    """The median of the differences within the pairs."""
    added_ms = [(suite_s - alone_s) * 1000 for alone_s, suite_s in pairs]
    alone_ms, suite_ms = (statistics.median(times) * 1000 for times in zip(*pairs, strict=True))
    cpu = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in saturated["cpu_s"].items())
    rows = [
        Row("bare engine", {"TTFT p50 ms": f"{alone_ms:.2f}"}, "prefill of the same tokens in one step"),
        Row(
            "headrace",
            {"TTFT p50 ms": f"{suite_ms:.2f}"},
            f"CPU while saturated for {saturated['wall_s']:.0f} s: {cpu}",
        ),
    ]
    return Report(
        "overhead",
        [
            Figure("overhead.ttft_ms", statistics.median(added_ms)),
            Figure("overhead.scheduling_share", saturated["share"]),
        ],
        rows,
        settings=lab.settings() | {"requests": lab.num_requests, "streams": NUM_STREAMS},
        raw={"pairs_s": pairs, "saturated": saturated},
        notes=[
            "scheduling share: CPU time of the scheduler's process over inference time (executor CPU over its threads)"
        ],
    )
