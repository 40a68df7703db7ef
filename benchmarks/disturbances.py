"""Running services that are killed, told to leave or paused, one at a time, and the calls that meet it.

Somebody else starts again what has ended: `headrace up --restart`, or a fleet of ours.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

from headrace.benchmarks.process_time import pids
from headrace.benchmarks.suite import Suite
from headrace.chassis.config import TransportSettings
from headrace.client import AsyncClient
from headrace.core.errors import HeadraceError, Unavailable
from headrace.standalone.readiness import await_serving

VICTIMS = ("executor", "scheduler", "gateway")
BACK_S = 90.0
"""Longest wait for a service to serve again: one that is told to leave drains first."""
SETTLED_S = 60.0
PAUSE_S = 4.0
"""Longer than an executor's lease."""
ANSWER_S = 1.0
POLL_S = 0.1


class How(StrEnum):
    KILLED = "killed"
    ENDED = "ended"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A service that did not serve from `at_s` to `back_s`."""

    service: str
    how: How
    at_s: float
    back_s: float


def met(disturbances: Iterable[Disturbance], asked_s: float, ended_s: float, *services: str) -> bool:
    """Whether a call was under way while one of `services` did not serve."""
    return any(each.service in services and asked_s <= each.back_s and each.at_s <= ended_s for each in disturbances)


@dataclass(frozen=True, slots=True)
class Target:
    """A service to disturb: its process now, None while there is none, and the HOST:PORT that serves after that."""

    pid: Callable[[], int | None]
    address: str


Choose = Callable[[str], Awaitable[Target]]
"""Which process of a service is next."""


def only_one(suite: Suite) -> Choose:
    """A suite has one of each."""

    async def choose(service: str) -> Target:
        return Target(lambda: pids(suite.pid).get(service), suite.addresses[service])

    return choose


class Disturber:
    """Disturbs services, and knows which calls are under way. Its times are seconds since it was made."""

    def __init__(self, client: AsyncClient, choose: Choose) -> None:
        self.done: list[Disturbance] = []
        self.num_calls = 0
        self._client = client
        self._choose = choose
        self._began = time.perf_counter()
        self._asked: dict[object, float] = {}

    def now_s(self) -> float:
        return time.perf_counter() - self._began

    async def until(self, at_s: float) -> None:
        """Waits for that time; not at all where it has passed."""
        await asyncio.sleep(max(0.0, at_s - self.now_s()))

    @contextmanager
    def call(self) -> Iterator[float]:
        """A call is under way within the block; yields when it began."""
        call = object()
        self.num_calls += 1
        self._asked[call] = self.now_s()
        try:
            yield self._asked[call]
        finally:
            del self._asked[call]

    async def disturb(self, service: str, how: How) -> Disturbance:
        """Returns once the service serves again. Raises Unavailable where it does not within BACK_S."""
        target = await self._choose(service)
        pid, at_s = await _process(target), self.now_s()
        if how is How.PAUSED:
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(PAUSE_S)
            finally:
                os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGKILL if how is How.KILLED else signal.SIGTERM)
            await _process(target, pid)
        await await_serving(target.address, TransportSettings(), BACK_S)
        if service == "gateway":
            await self._reached()
        self.done.append(Disturbance(service, how, at_s, self.now_s()))
        return self.done[-1]

    async def settled(self) -> None:
        """Waits until calls that met the last disturbance have ended, SETTLED_S at most: what the next one does to
        them would hide what this one did."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_S):
                while self.done and any(asked_s <= self.done[-1].back_s for asked_s in self._asked.values()):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)

    async def _reached(self) -> None:
        """The callers' channel finds the gateway some time after that serves: it had paused before its next try."""
        try:
            async with asyncio.timeout(BACK_S):
                while True:
                    with suppress(HeadraceError):
                        await self._client.models(timeout_s=ANSWER_S)
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise Unavailable(f"callers did not reach the gateway within {BACK_S:g} s") from error


async def _process(target: Target, old: int | None = None) -> int:
    """The target's process, once there is another than `old`. Raises Unavailable after BACK_S."""
    try:
        async with asyncio.timeout(BACK_S):
            while (pid := target.pid()) is None or pid == old:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            return pid
    except TimeoutError as error:
        raise Unavailable(f"what serves {target.address} was not started again within {BACK_S:g} s") from error
