"""A suite of the reference engine with metrics on, in this process or in several, watched as `headrace doctor` does."""

import asyncio
import json
import os
import shutil
import socket
import sys
import sysconfig
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from headrace.chassis.config import Settings, default_home, load_settings
from headrace.cli.diagnosis import Finding, diagnose
from headrace.cli.figures import Figures, Snapshot
from headrace.cli.scraping import scraping as scraping_addresses
from headrace.cli.scraping import suite as scraping
from headrace.client import AsyncClient
from headrace.models import reference
from headrace.standalone.services import Service
from headrace.standalone.single import running

NUM_PORTS = 16
BOUND_S = 120
LOOK_S = 0.2


@dataclass
class Watched:
    """A running suite, the first port of its metrics, and since when it is watched."""

    client: AsyncClient
    gateway: str
    port: int
    before: Snapshot
    since: float

    async def begin(self) -> None:
        """What was up to now no longer counts."""
        self.before, self.since = await asyncio.to_thread(scraping(self.port)), time.monotonic()

    async def figures(self) -> Figures:
        """What has happened since."""
        after = await asyncio.to_thread(scraping(self.port))
        return Figures(self.before, after, time.monotonic() - self.since)

    async def until(self, seen: Callable[[Figures], bool]) -> Figures:
        """The first figures that fit. Fails where none do."""
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    figures = await self.figures()
                    if seen(figures):
                        return figures
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            pytest.fail(f"only seen: {names(diagnose(await self.figures()))}")

    async def finding(self, name: str) -> Finding:
        """The finding of this name, once there is one."""
        figures = await self.until(lambda figures: name in names(diagnose(figures)))
        return next(finding for finding in diagnose(figures) if finding.name == name)


def names(findings: Sequence[Finding]) -> list[str]:
    return [finding.name for finding in findings]


class Watching(Protocol):
    """Starts a suite of the reference engine; sections of settings go on top of the fixture's."""

    def __call__(self, **sections: dict[str, Any]) -> AbstractAsyncContextManager[Watched]: ...


@pytest.fixture
def metrics_port() -> int:
    """The first of NUM_PORTS ports in a row that nobody has, below those that the system hands out."""
    begin = 12_000 + os.getpid() % 600 * NUM_PORTS  # several runs of tests do not meet
    for first in range(begin, 32_000, NUM_PORTS):
        with ExitStack() as held:
            try:
                for port in range(first, first + NUM_PORTS):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")


@pytest.fixture
def watching(tmp_path: Path, metrics_port: int) -> Watching:
    @asynccontextmanager
    async def start(**sections: dict[str, Any]) -> AsyncIterator[Watched]:
        reference.install(tmp_path)
        (tmp_path / "models" / "minilm").symlink_to(default_home() / "models" / "minilm")
        anywhere = {"listen": "127.0.0.1:0"}
        settings = load_settings(
            overrides={
                "models": {"home": tmp_path},
                "transport": {"drain_s": 1},
                "scheduler": anywhere | sections.get("scheduler", {}),
                "executor": anywhere
                | {"engine": "reference", "models": [reference.NAME]}
                | sections.get("executor", {}),
                "encoder": anywhere | {"model": ""} | sections.get("encoder", {}),
                "gateway": anywhere | sections.get("gateway", {}),
                "screen": sections.get("screen", {}),
                "telemetry": {"metrics_listen": f"127.0.0.1:{metrics_port}"},
            }
        )
        async with running(settings) as suite, AsyncClient(suite.gateway) as client:
            watched = Watched(client, suite.gateway, metrics_port, {}, 0.0)
            await watched.begin()
            yield watched

    return start


@dataclass
class Fleet:
    """Services as processes of their own: a scheduler, executors and a gateway, and where their metrics are."""

    gateway: str
    executors: list[Process]
    metrics: list[str]

    async def look(self) -> Snapshot:
        """What the services' metrics are now."""
        return await asyncio.to_thread(scraping_addresses(None, self.metrics, "", None))

    async def finding(self, name: str, before: Snapshot | None = None) -> Finding:
        """The finding of this name, once there is one in what happens after `before`, or from now on. Fails where there
        never is."""
        found = list[Finding]()
        before, since = before or await self.look(), time.monotonic()
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    await asyncio.sleep(LOOK_S)
                    found = diagnose(Figures(before, await self.look(), time.monotonic() - since))
                    if named := [each for each in found if each.name == name]:
                        return named[0]
        except TimeoutError:
            pytest.fail(f"only seen: {found}")


class StartsFleet(Protocol):
    """Starts an executor for each of these settings. All are killed at the end."""

    def __call__(self, *executors: dict[str, Any]) -> AbstractAsyncContextManager[Fleet]: ...


@pytest.fixture
def fleet(tmp_path: Path, metrics_port: int) -> StartsFleet:
    @asynccontextmanager
    async def start(*executors: dict[str, Any]) -> AsyncIterator[Fleet]:
        reference.install(tmp_path)
        scheduler, gateway, *own = (f"127.0.0.1:{metrics_port + place}" for place in range(2 + len(executors)))
        common: dict[str, Any] = {
            "models": {"home": tmp_path},
            "scheduler": {"listen": scheduler, "lease_ms": 5_000, "grace_ms": 100},
            "gateway": {"listen": gateway, "scheduler": scheduler},
        }
        engine = {"engine": "reference", "models": [reference.NAME], "scheduler": scheduler}
        services = [
            (Service.SCHEDULER, common),
            *(
                (Service.EXECUTOR, common | {"executor": {"listen": listen, **engine, **settings}})
                for listen, settings in zip(own, executors, strict=True)
            ),
            (Service.GATEWAY, common),
        ]
        metrics = [f"127.0.0.1:{metrics_port + NUM_PORTS // 2 + place}" for place in range(len(services))]
        async with AsyncExitStack() as stack:
            processes = await asyncio.gather(
                *(
                    _process(service, load_settings(overrides={**each, "telemetry": {"metrics_listen": at}}), stack)
                    for (service, each), at in zip(services, metrics, strict=True)
                )
            )
            yield Fleet(gateway, processes[1:-1], metrics)

    return start


async def _process(service: Service, settings: Settings, stack: AsyncExitStack) -> Process:
    """Listens when this returns."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.standalone.process", service), stdin=PIPE, stdout=PIPE
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(settings.model_dump_json().encode() + b"\n")
    async with asyncio.timeout(BOUND_S):
        assert "address" in json.loads(await process.stdout.readline())
    return process


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """The path of a program that `make prometheus` brings. Skips where it is not to be had."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    def find(name: str) -> str:
        found = shutil.which(name, path=path)
        if found is None:
            pytest.skip(f"{name} is not installed: make prometheus brings it where apt-get is")
        return found

    return find
