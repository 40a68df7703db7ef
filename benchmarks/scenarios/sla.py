"""sla: answers cut off at their SLA on a saturated executor: how late the cut is, and whether the rest is found.

64 callers each ask, hear a partial answer at a random SLA, attach for the rest, and ask again, until there are TRIES
partial answers. Then the suite is stopped and started again on the same result store, and every answer is fetched anew.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, OUTPUT_TOKENS, PROMPT_TOKENS, Lab
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.suite import Suite, started
from headrace.client import FinishReason, Piece
from headrace.core.errors import HeadraceError

TRIES = 1_000
SLA_MS = (50, 1_500)
"""Drawn evenly: before the first token, or within the answer."""
RAMP_S = 2.0
"""The callers begin one after another."""
FETCHERS = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """A partial answer: how late its end came, its tokens, where the rest was, and the whole as attaching gave it."""

    sla_ms: int
    lag_ms: float
    partial: tuple[int, ...]
    handle: str
    whole: tuple[int, ...]
    fault: str = ""

    @property
    def found(self) -> bool:
        """The whole answer came, and began with what had been streamed."""
        return len(self.whole) == OUTPUT_TOKENS and self.whole[: len(self.partial)] == self.partial


async def run(lab: Lab) -> Report:
    """One load, one restart."""
    store = lab.log("sla").with_suffix(".db")
    for file in store.parent.glob(f"{store.name}*"):
        file.unlink()
    settings = {"HEADRACE_RESULTS__STORE": str(store), "HEADRACE_RESULTS__MAX_RESULTS": str(10 * TRIES)}
    async with started(lab.model, lab.log("sla"), settings) as suite:
        lab.say(f"{TRIES} partial answers to {NUM_STREAMS} callers")
        cuts, num_whole = await _cut(suite, lab.prompts(), random.Random(lab.seed))
    async with started(lab.model, lab.log("sla-restarted"), settings) as suite:
        lab.say("fetching all of them after a restart")
        fetched = await _fetch(suite, [cut.handle for cut in cuts])
    return report(lab, cuts, fetched, num_whole)


async def _cut(suite: Suite, prompts: Prompts, drawn: random.Random) -> tuple[list[Cut], int]:
    """The partial answers, and how many were whole before their SLA."""
    cuts, num_whole = list[Cut](), 0
    asks = itertools.cycle([prompts.draw(PROMPT_TOKENS) for _ in range(TRIES + NUM_STREAMS)])  # not while it is timed

    async def caller(start_s: float) -> None:
        nonlocal num_whole
        await asyncio.sleep(start_s)
        while len(cuts) < TRIES:
            sla_ms, prompt, asked = drawn.randint(*SLA_MS), next(asks), time.perf_counter()
            stream = suite.client.stream(
                suite.model,
                prompt,
                max_tokens=OUTPUT_TOKENS,
                ignore_eos=True,
                sla_total_ms=sla_ms,
                on_miss="partial",
            )
            pieces = [piece async for piece in stream]
            lag_ms = (time.perf_counter() - asked) * 1000 - sla_ms
            last = pieces[-1]
            if last.finish_reason is not FinishReason.PARTIAL or last.result is None:
                num_whole += 1
                continue
            partial, fault, rest = _tokens(pieces), "", list[Piece]()
            try:
                async for piece in suite.client.attach_result(last.result.handle, last.result.offset):
                    rest.append(piece)
            except HeadraceError as error:
                fault = f"{error.reason}: {error.message}"
            cuts.append(Cut(sla_ms, lag_ms, partial, last.result.handle, partial + _tokens(rest), fault))

    async with asyncio.TaskGroup() as group:
        for number in range(NUM_STREAMS):
            group.create_task(caller(RAMP_S * number / NUM_STREAMS))
    return cuts, num_whole


async def _fetch(suite: Suite, handles: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The tokens of those that can be fetched whole."""
    fetched: dict[str, tuple[int, ...]] = {}
    waiting = list(handles)

    async def fetcher() -> None:
        while waiting:
            handle = waiting.pop()
            try:
                fetched[handle] = await _attached(suite.client.attach_result(handle))
            except HeadraceError:
                continue  # it counts as lost

    async with asyncio.TaskGroup() as group:
        for _ in range(FETCHERS):
            group.create_task(fetcher())
    return fetched


async def _attached(pieces: AsyncIterator[Piece]) -> tuple[int, ...]:
    return _tokens([piece async for piece in pieces])


def _tokens(pieces: Sequence[Piece]) -> tuple[int, ...]:
    return tuple(token_id for piece in pieces for token_id in piece.token_ids)


def report(lab: Lab, cuts: Sequence[Cut], fetched: dict[str, tuple[int, ...]], num_whole: int) -> Report:
    """Lost is what was not found whole in the same run, or differed or was missing after the restart."""
    lags = sorted(cut.lag_ms for cut in cuts)
    lost_live = sum(not cut.found for cut in cuts)
    lost = sum(not (cut.found and fetched.get(cut.handle) == cut.whole) for cut in cuts)
    p99 = lags[min(len(lags) - 1, int(0.99 * len(lags)))] if lags else None
    rows = [
        Row(
            "headrace",
            {
                "partial": f"{len(cuts):,}",
                "before the first token": f"{sum(not cut.partial for cut in cuts):,}",
                "lag p50 ms": f"{lags[len(lags) // 2]:.1f}",
                "lag p99 ms": f"{p99:.1f}",
                "lag max ms": f"{lags[-1]:.1f}",
                "lost": f"{lost_live:,}",
                "lost with the restart": f"{lost:,}",
            },
        )
        for _ in lags[:1]
    ]
    raw: dict[str, Any] = {
        "cuts": [asdict(cut) | {"partial": len(cut.partial), "whole": len(cut.whole)} for cut in cuts]
    }
    return Report(
        "sla",
        [Figure("sla.partial_lag_ms_p99", p99), Figure("sla.lost", float(lost) if cuts else None)],
        rows,
        settings=lab.settings() | {"tries": TRIES, "sla_ms": SLA_MS, "streams": NUM_STREAMS},
        raw=raw,
        notes=[
            "lag: from the SLA after the call was made to its last piece, as the caller sees it",
            f"{num_whole} answers were whole before their SLA and are not counted",
        ],
    )
