"""The soak: a suite with little KV memory, workers that ask, services disturbed by turns, and the checks at the end."""

import asyncio
import os
import random
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from headrace.benchmarks.disturbances import VICTIMS, Disturber, How, only_one
from headrace.benchmarks.process_time import pids
from headrace.benchmarks.soak import invariants
from headrace.benchmarks.soak.calls import Ended
from headrace.benchmarks.soak.invariants import Check, Sample
from headrace.benchmarks.soak.levels import Levels, free_port, num_enlisted, scraped
from headrace.benchmarks.soak.mix import worker
from headrace.benchmarks.suite import Suite, started
from headrace.client.scheduler_admin import SchedulerAdmin
from headrace.core.errors import Unavailable
from headrace.standalone.services import Service

BETWEEN_S = (2.0, 45.0)
DISTURBANCES = 3 * len(VICTIMS)
"""As many at least as the time allows, so that each service is disturbed in each way."""
SAMPLE_S = 2.0
SETTLED_S = 60.0
"""Longest wait for what the last calls hold to be given back."""
POLL_S = 0.2
RESULTS = "results.db"


async def soak(
    model: str, minutes: float, num_workers: int, seed: int, log: Path, say: Callable[[str], None]
) -> list[Check]:
    """Loads and disturbs for `minutes`, longer where a service takes long to come back. Raises Unavailable where one
    does not, or the suite does not start."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as scratch:
        settings = {
            "HEADRACE_EXECUTOR__KV_BYTES": str(256 * 2**20),  # soon full: the prefix cache and displacement have work
            "HEADRACE_RESULTS__STORE": str(Path(scratch, RESULTS)),
            "TMPDIR": scratch,
        }
        options = ("--restart", "--metrics-port", str(port))
        async with started(model, log, settings, options) as suite:
            checks = await _loaded(suite, port, minutes * 60, num_workers, seed, say)
            processes = [suite.pid, *pids(suite.pid).values()]
        return [*checks, invariants.of_files(_left(Path(scratch))), invariants.of_processes(list(_alive(processes)))]


async def _loaded(
    suite: Suite, port: int, duration_s: float, num_workers: int, seed: int, say: Callable[[str], None]
) -> list[Check]:
    before = await _idle(port)
    disturber, over = Disturber(suite.client, only_one(suite)), asyncio.Event()
    samples: list[Sample] = []
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(_sample(port, disturber, samples))
        async with asyncio.TaskGroup() as load:
            workers = [
                load.create_task(worker(suite, disturber, random.Random(f"{seed}:{number}"), over))
                for number in range(num_workers)
            ]
            await _disturb(disturber, duration_s, random.Random(seed), say)
            over.set()
        sampling.cancel()
    say("waiting until nothing is held")
    after = await _settled(port, before)
    async with SchedulerAdmin(suite.scheduler) as admin:
        tally = (await admin.status()).tally
    calls: list[Ended] = [call for each in workers for call in each.result()]
    return [
        invariants.of_calls(disturber.num_calls, calls, disturber.done),
        invariants.of_tally(tally),
        invariants.of_levels(before, after),
        *invariants.of_growth(samples),
    ]


async def _idle(port: int) -> dict[Service, Levels]:
    """The levels once the executor has enlisted. Raises Unavailable."""
    try:
        async with asyncio.timeout(SETTLED_S):
            while not num_enlisted(before := await scraped(port)):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            return before
    except TimeoutError as error:
        raise Unavailable(f"no executor had enlisted after {SETTLED_S:g} s") from error


async def _disturb(disturber: Disturber, duration_s: float, drawn: random.Random, say: Callable[[str], None]) -> None:
    """Each service by turns, the way it is disturbed by turns too, at random distances."""
    shortest_s, longest_s = BETWEEN_S
    mean_s = min(longest_s, max(shortest_s, duration_s / DISTURBANCES))
    for number in range(max(len(VICTIMS), round(duration_s / mean_s))):
        await disturber.until(min(duration_s, disturber.now_s() + drawn.uniform(0.2, 1.2) * mean_s))
        if disturber.now_s() >= duration_s and number >= len(VICTIMS):
            break
        victim, how = VICTIMS[number % len(VICTIMS)], list(How)[(number + number // len(VICTIMS)) % len(How)]
        done = await disturber.disturb(victim, how)
        await disturber.settled()
        say(f"{victim} {how} at {done.at_s:.0f} s, back after {done.back_s - done.at_s:.1f} s")
    await disturber.until(duration_s)


async def _sample(port: int, disturber: Disturber, samples: list[Sample]) -> None:
    """Until cancelled."""
    while True:
        samples.append(Sample(disturber.now_s(), await scraped(port)))
        await asyncio.sleep(SAMPLE_S)


async def _settled(port: int, before: dict[Service, Levels]) -> dict[Service, Levels]:
    """The levels once they are as before, or as they stand after SETTLED_S."""
    after: dict[Service, Levels] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLED_S):
            while not invariants.of_levels(before, after := await scraped(port)).holds:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
    return after


def _left(scratch: Path) -> list[str]:
    return sorted(file.name for file in scratch.iterdir() if file.name != RESULTS)


def _alive(processes: Iterable[int]) -> Iterable[int]:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            yield pid
