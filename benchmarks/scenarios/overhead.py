"""overhead: what the suite adds to the bare engine's time to first token, and the scheduler's share at saturation.

Both sides get the same tokens, in turns, one request at a time. The suite prefills with the same engine in a process
of its own; the other side idles meanwhile. Two processes' steps differ by more than what the suite adds, so each
request's first token is also compared with the step that its own trace says it had.
"""

import asyncio
import os
import statistics
import time
from typing import Any, cast

from headrace.benchmarks.bare_engine import BareLoop
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, PROMPT_TOKENS, Lab
from headrace.benchmarks.machine import num_cores
from headrace.benchmarks.measure import saturate_suite, window_json
from headrace.benchmarks.process_time import cpu_s
from headrace.benchmarks.suite import Suite, started
from headrace.chassis import signals
from headrace.chassis.config import load_settings
from headrace.executor.engines.registry import load_engine
from headrace.standalone.span_reader import open_reader
from headrace.standalone.spans import default_database

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
        engine_s = _engine_s(lab, len(pairs))  # the suite has sent its last spans
    finally:
        engine.close()
    return report(lab, pairs, engine_s, share)


async def _pairs(lab: Lab, suite: Suite, bare: BareLoop) -> list[tuple[float, float]]:
    prompts, pairs = lab.prompts(), list[tuple[float, float]]()
    for index in range(WARM_REQUESTS + lab.num_requests):
        prompt = prompts.draw(PROMPT_TOKENS)
        alone_s = await asyncio.to_thread(bare.first_token_s, prompt)
        suite_s = await _first_token_s(suite, prompt, _request_id(index - WARM_REQUESTS))
        if index >= WARM_REQUESTS:
            pairs.append((alone_s, suite_s))
    return pairs


async def _first_token_s(suite: Suite, prompt: list[int], request_id: str) -> float:
    begun, first_token_s = time.perf_counter(), 0.0
    stream = suite.client.stream(suite.model, prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, request_id=request_id)
    async for _ in stream:
        first_token_s = first_token_s or time.perf_counter() - begun
    return first_token_s


def _request_id(index: int) -> str:
    """Also unlike those of earlier runs, whose spans may be kept."""
    return f"overhead-{os.getpid()}-{index}"


def _engine_s(lab: Lab, num_requests: int) -> list[float]:
    """How long the engine took over each request up to its first token, by its trace. Raises NotFound."""
    with open_reader(default_database(lab.home)) as reader:
        return [
            float(cast(float, span.attributes[signals.ENGINE_MS])) / 1000
            for index in range(num_requests)
            for span in reader.find(_request_id(index))
            if span.name == signals.EXECUTOR_PREFILL
        ]


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


def report(lab: Lab, pairs: list[tuple[float, float]], engine_s: list[float], saturated: dict[str, Any]) -> Report:
    """The median of the differences within the pairs, and of those to the engine's own time in the same request."""
    added_ms = [(suite_s - alone_s) * 1000 for alone_s, suite_s in pairs]
    alone_ms, suite_ms = (statistics.median(times) * 1000 for times in zip(*pairs, strict=True))
    rest_ms = [(suite_s - own_s) * 1000 for (_, suite_s), own_s in zip(pairs, engine_s, strict=True)]
    cpu = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in saturated["cpu_s"].items())
    rows = [
        Row("bare engine", {"TTFT p50 ms": f"{alone_ms:.2f}"}, "prefill of the same tokens in one step"),
        Row(
            "its engine",
            {"TTFT p50 ms": f"{statistics.median(engine_s) * 1000:.2f}"},
            f"the rest of a first token is {statistics.median(rest_ms):.2f} ms",
        ),
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
        raw={"pairs_s": pairs, "engine_s": engine_s, "saturated": saturated},
        notes=[
            "scheduling share: CPU time of the scheduler's process over inference time (executor CPU over its threads)"
        ],
    )
