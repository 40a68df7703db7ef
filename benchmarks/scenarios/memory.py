"""memory: twice as many streams as KV memory fits: what fails, what lies idle under load, when it is given back.

The executor gets little KV memory and more slots than that feeds. After the load nothing is kept for later prompts, so
that all pages have to go.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.process_time import pids
from headrace.benchmarks.suite import Suite, started
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.client.executor_status import MemoryStatus, memory_status
from headrace.core.errors import HeadraceError

KV_BYTES = 512 * 2**20
MEAN_TOKENS = 300
"""Of prompt and answer of a request, on average: see `_lengths`."""
SLOTS = 128
SAMPLE_S = 0.1
RETURN_WITHIN_S = 30.0
SETTINGS = {
    "HEADRACE_EXECUTOR__KV_BYTES": str(KV_BYTES),
    "HEADRACE_EXECUTOR__NUM_SLOTS": str(SLOTS),
    "HEADRACE_EXECUTOR__STEP_TOKENS": "640",
    "HEADRACE_EXECUTOR__IDLE_CACHE_BYTES": "0",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The executor's memory at a moment; `rss_bytes` is its process's anonymous memory."""

    at_s: float
    memory: MemoryStatus
    rss_bytes: int


async def run(lab: Lab) -> Report:
    """One window of load after its warm-up, then the wait for the pages."""
    drawn, prompts = random.Random(lab.seed), lab.prompts()
    failures: list[str] = []
    num_answers = 0

    async def stream(until: float) -> None:
        nonlocal num_answers
        while time.perf_counter() < until:
            prompt_tokens, answer_tokens = _lengths(drawn)
            try:
                async for _ in suite.stream(prompts.draw(prompt_tokens), answer_tokens):
                    pass
                num_answers += 1
            except HeadraceError as error:
                failures.append(f"{error.reason}: {error.message}")
                await asyncio.sleep(SAMPLE_S)

    async with (
        started(lab.model, lab.log("suite"), SETTINGS) as suite,
        open_channel(suite.executor, TransportSettings()) as channel,
    ):
        before = await _sample(suite, channel)
        streams = _twice_what_fits(before.memory)
        lab.say(f"{streams} streams for {lab.warm_s + lab.window_s:g} s")
        begun = time.perf_counter()
        samples: list[Sample] = []
        async with asyncio.TaskGroup() as group:
            load = [group.create_task(stream(begun + lab.warm_s + lab.window_s)) for _ in range(streams)]
            while not all(task.done() for task in load):
                await asyncio.sleep(SAMPLE_S)
                now = time.perf_counter() - begun
                if lab.warm_s <= now < lab.warm_s + lab.window_s:
                    samples.append(await _sample(suite, channel))
        lab.say("waiting for the pages")
        after = await _until(lambda sample: sample.memory.mapped_bytes <= before.memory.mapped_bytes, suite, channel)
    return report(lab, streams, num_answers, failures, before, samples, after)


def _lengths(drawn: random.Random) -> tuple[int, int]:
    """Prompt and answer in tokens."""
    return drawn.randint(16, 400), drawn.randint(8, 176)


def _twice_what_fits(memory: MemoryStatus) -> int:
    """Streams whose requests take twice the KV memory; a block is a fixed number of tokens, 32 on this engine."""
    blocks = KV_BYTES // memory.block_bytes
    return 2 * blocks * 32 // MEAN_TOKENS


async def _until(reached: Callable[[Sample], bool], suite: Suite, channel: grpc.aio.Channel) -> list[Sample]:
    """Samples until one is as wanted, or RETURN_WITHIN_S have passed; their times count from now."""
    begun, samples = time.perf_counter(), list[Sample]()
    while not samples or (not reached(samples[-1]) and samples[-1].at_s < RETURN_WITHIN_S):
        await asyncio.sleep(SAMPLE_S)
        taken = await _sample(suite, channel)
        samples.append(Sample(time.perf_counter() - begun, taken.memory, taken.rss_bytes))
    return samples


async def _sample(suite: Suite, channel: grpc.aio.Channel) -> Sample:
    return Sample(0.0, await memory_status(channel), _anonymous_bytes(suite.pid))


def _anonymous_bytes(root_pid: int) -> int:
    """Of the suite's executor; 0 where the system does not say."""
    pid = pids(root_pid).get("executor")
    if pid is None:
        return 0
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def report(
    lab: Lab,
    streams: int,
    num_answers: int,
    failures: list[str],
    before: Sample,
    samples: list[Sample],
    after: list[Sample],
) -> Report:
    """Fragmentation is the mean over the load; `return_s` counts from the last answer."""
    returned = after[-1].memory.mapped_bytes <= before.memory.mapped_bytes
    fragmentation = statistics.fmean(each.memory.fragmentation for each in samples) if samples else None
    peak = max(samples, key=lambda each: each.memory.mapped_bytes, default=before)
    rows = [
        Row(
            name,
            {
                "mapped MiB": _mib(each.memory.mapped_bytes),
                "used MiB": _mib(each.memory.used_bytes),
                "RSS MiB": _mib(each.rss_bytes),
            },
        )
        for name, each in (("before", before), ("most", peak), ("after", after[-1]))
    ]
    raw: dict[str, Any] = {
        "failures": failures[:100],
        "load": [asdict(each) for each in samples],
        "after": [asdict(each) for each in after],
    }
    return Report(
        "memory",
        [
            Figure("memory.fragmentation", fragmentation),
            Figure("memory.oom", float(len(failures)) if num_answers else None),
            Figure("memory.return_s", after[-1].at_s if returned else None),
        ],
        rows,
        settings=lab.settings() | SETTINGS | {"streams": streams},
        raw=raw,
        notes=[f"{num_answers} answers to {streams} streams, {len(failures)} failed"],
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f}"
