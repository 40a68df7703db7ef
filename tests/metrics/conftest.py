"""A suite of the reference engine with metrics on, watched as `headrace doctor` does."""

import asyncio
import os
import shutil
import socket
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from headrace.chassis.config import default_home, load_settings
from headrace.cli.diagnosis import Finding, diagnose
from headrace.cli.figures import Figures, Snapshot
from headrace.cli.scraping import suite as scraping
from headrace.client import AsyncClient
from headrace.models import reference
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
