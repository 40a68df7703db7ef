"""screen: how soon an illegal request is blocked at saturation, what legal ones wait for it, and what it finds.

The suite blocks by the tenant's policy: streams of tenant `screened` are screened, those of `free` are not, both in
the same run, side by side under the same load. A request's added time is what its tokens were held for the verdict
where they were there first, nothing where the verdict was, as the gateway's spans say; rows come from the workloads'
test part, which no weight was trained on.
"""

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import numpy as np

from headrace.benchmarks.closed_loop import Window, closed_loop
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, OUTPUT_TOKENS, PROMPT_TOKENS, Lab
from headrace.benchmarks.screening_rows import ScreeningRow, embedded_rows, screening_rows
from headrace.benchmarks.screening_table import CLEAR_HARM, INJECTIONS, SCREENING_FILES, Share, share
from headrace.benchmarks.suite import Suite, started
from headrace.chassis import signals
from headrace.chassis.config import load_settings
from headrace.client import AsyncClient
from headrace.core.errors import InvalidRequest, ScreenRejected
from headrace.core.screening import worst
from headrace.models.repository import Repository
from headrace.preprocess.screen.registry import load_screen
from headrace.standalone.span_reader import SETTLE_S, open_reader
from headrace.standalone.spans import default_database

MAX_CHARS = 4 * PROMPT_TOKENS
"""Of a legal prompt under load."""
MOST_SPANS = 20_000
"""Requests of a run at most, of which the newest count."""
PAUSE_S = 0.25
"""Between two illegal requests: they are to be few beside the load."""
RULES = json.dumps([{"tenant": "free", "policy": "off"}])


async def run(lab: Lab) -> Report:
    """Raises InvalidRequest without a workloads folder."""
    if lab.workloads is None:
        raise InvalidRequest("screen wants --workloads with labelled rows", field="workloads")
    rows = screening_rows(lab.workloads)
    rows = [row for row in (*rows, *embedded_rows(rows)) if row.part == "test"]
    lab.say(f"judging {len(rows)} rows that nothing was trained on")
    found = await asyncio.to_thread(judged, lab, rows)
    illegal = [row for row, hit in zip(rows, found, strict=True) if hit and row.file in CLEAR_HARM]
    legal = [
        row.text
        for row, hit in zip(rows, found, strict=True)
        if not hit and row.file not in SCREENING_FILES and len(row.text) <= MAX_CHARS
    ]
    settings = {"HEADRACE_SCREEN__POLICY": "block", "HEADRACE_SCREEN__RULES": RULES}
    async with started(lab.model, lab.log("suite-screen"), settings) as suite:
        lab.say(f"{NUM_STREAMS} busy streams, every other one screened, illegal requests between them")
        begun_ns = time.time_ns()
        windows, blocked_s = await _under_load(lab, suite, [row.text for row in illegal], legal)
        await asyncio.sleep(SETTLE_S)
        held_ms = _held_ms(lab, begun_ns)
    return report(lab, rows, found, windows, blocked_s, held_ms)


def _held_ms(lab: Lab, begun_ns: int) -> list[float]:
    """Of each legal request that was screened since then, how long its first token waited for the verdict."""
    with open_reader(default_database(lab.home)) as reader:
        return [
            float(cast(float, span.attributes.get(signals.SCREEN_HELD_MS, 0.0)))
            for span in reader.recent(MOST_SPANS)
            if span.start_ns >= begun_ns and span.attributes.get(signals.SCREEN_VERDICT) == "pass"
        ]


def judged(lab: Lab, rows: Sequence[ScreeningRow]) -> list[bool]:
    """Whether the screen finds each row, all its windows looked at."""
    screen = load_screen(load_settings().screen.model, Repository(lab.home), 1)
    return [bool(worst(screen.judge(screen.split(row.text))).category) for row in rows]


async def _under_load(
    lab: Lab, suite: Suite, illegal: Sequence[str], legal: Sequence[str]
) -> tuple[dict[str, Window], list[float]]:
    """A saturated window of each tenant, at the same time, and the seconds until each illegal request was refused."""
    texts = itertools.cycle(legal)

    async with (
        AsyncClient(suite.gateway, tenant="screened", retries=0) as screened,
        AsyncClient(suite.gateway, tenant="free", retries=0) as free,
    ):

        def stream_of(client: AsyncClient) -> Any:
            async def stream(prompt: Sequence[int], max_tokens: int) -> AsyncIterator[int]:
                async for piece in client.stream(suite.model, next(texts), max_tokens=max_tokens, ignore_eos=True):
                    yield len(piece.token_ids)

            return stream

        async with asyncio.TaskGroup() as tasks:
            loads = {
                name: tasks.create_task(
                    closed_loop(
                        stream_of(client),
                        itertools.repeat(()),
                        num_streams=NUM_STREAMS // 2,
                        max_tokens=OUTPUT_TOKENS,
                        warm_s=lab.warm_s,
                        window_s=lab.window_s,
                    )
                )
                for name, client in (("screened", screened), ("free", free))
            }
            refusing = tasks.create_task(_refused(lab, screened, suite.model, illegal))
        return {name: load.result() for name, load in loads.items()}, refusing.result()


async def _refused(lab: Lab, client: AsyncClient, model: str, illegal: Sequence[str]) -> list[float]:
    """Sends one after the other while the window is open. Raises RuntimeError where a token of one leaves."""
    await asyncio.sleep(lab.warm_s)
    closes, times = time.perf_counter() + lab.window_s, list[float]()
    for text in itertools.cycle(illegal):
        asked = time.perf_counter()
        if asked >= closes:
            return times
        try:
            async for _ in client.stream(model, text, max_tokens=OUTPUT_TOKENS):
                raise RuntimeError("a token of a request that is to be blocked left the gateway")
        except ScreenRejected:
            times.append(time.perf_counter() - asked)
        await asyncio.sleep(PAUSE_S)
    return times


def report(
    lab: Lab,
    rows: Sequence[ScreeningRow],
    found: Sequence[bool],
    windows: dict[str, Window],
    blocked_s: Sequence[float],
    held_ms: Sequence[float],
) -> Report:
    """Shares are of test rows; times in ms."""
    pairs = list(zip(rows, found, strict=True))
    ttft_ms = {
        name: statistics.median(reply.ttft_s for reply in window.replies) * 1000 if window.replies else None
        for name, window in windows.items()
    }
    added_ms = statistics.median(held_ms) if held_ms else None
    block_ms = float(np.quantile(blocked_s, 0.99)) * 1000 if blocked_s else None
    lines = [
        Row(name, {"TTFT p50 ms": "–" if ms is None else f"{ms:.1f}"}, f"{len(windows[name].replies)} answers")
        for name, ms in ttft_ms.items()
    ]
    lines += [
        Row(file, {"recall": str(_of(pairs, file, True)), "over-blocking": str(_of(pairs, file, False))})
        for file in sorted({row.file for row in rows})
    ]
    return Report(
        "screen",
        [
            Figure("screen.block_ms_p99", block_ms),
            Figure("screen.added_ttft_ms_p50", added_ms),
            Figure("screen.recall", share(pairs, CLEAR_HARM, illegal=True).value),
            Figure("screen.recall_injection", share(pairs, INJECTIONS, illegal=True).value),
            Figure("screen.overblock", share(pairs, None, illegal=False).value),
            Figure("screen.overblock_xstest", share(pairs, ("xstest",), illegal=False).value),
        ],
        lines,
        settings=lab.settings() | {"pause_s": PAUSE_S, "streams": NUM_STREAMS},
        raw={
            "blocked_s": list(blocked_s),
            "held_ms": list(held_ms),
            "ttft_s": {name: [reply.ttft_s for reply in window.replies] for name, window in windows.items()},
        },
        notes=[
            f"{len(blocked_s)} illegal requests sent under load, no token of theirs left",
            f"added TTFT: what the first token of {len(held_ms)} legal requests was held for the verdict, "
            f"{sum(each > 0 for each in held_ms)} of them at all",
        ],
    )


def _of(pairs: Sequence[tuple[ScreeningRow, bool]], file: str, illegal: bool) -> Share:
    return share(pairs, (file,), illegal=illegal)
