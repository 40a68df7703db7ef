"""A fleet on this machine: two schedulers of which one leads, two gateways, two executors that share the cores.

Each process is started again when it ends. Callers know both gateways and use the first that answers.
"""

import asyncio
import itertools
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.benchmarks.disturbances import Target
from headrace.benchmarks.suite import free_ports, stop
from headrace.chassis.config import Settings, load_settings
from headrace.client import AsyncClient
from headrace.standalone.readiness import await_serving
from headrace.standalone.services import Service, listening

NUM_EACH = 2
SERVICES = (Service.SCHEDULER, Service.EXECUTOR, Service.GATEWAY)
READY_S = 180.0
STOP_S = 45.0
"""Longest wait for a process to drain and end."""
PAUSE_S = 0.2
"""Before a process is started again."""


class Member:
    """One service's process, at an address of its own."""

    def __init__(self, service: Service, settings: Settings, address: str, log: Path) -> None:
        self.service = service
        self.address = address
        self._settings = listening(settings, service, address)
        self._log = log
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        process = self._process
        return process.pid if process and process.returncode is None else None

    async def keep(self) -> None:
        """Runs it, again and again, until cancelled; then has it drain, and kills it after STOP_S."""
        try:
            while True:
                self._process = await self._start()
                await self._process.wait()
                await asyncio.sleep(PAUSE_S)
        finally:
            if self._process and self._process.returncode is None:
                await stop(self._process, STOP_S)

    async def _start(self) -> Process:
        with self._log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.standalone.process", self.service),
                stdin=PIPE,  # its end tells the process to leave
                stdout=DEVNULL,
                stderr=stderr,
                process_group=0,
            )
        if process.stdin is None:
            raise RuntimeError("a member has a pipe for its settings")
        process.stdin.write(self._settings.model_dump_json().encode() + b"\n")
        return process

    async def listens(self) -> bool:
        """A scheduler that stands by does not."""
        host, _, port = self.address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        return True


class Fleet:
    """A running fleet and a client of it."""

    def __init__(self, client: AsyncClient, model: str, members: dict[Service, list[Member]]) -> None:
        self.client = client
        self.model = model
        self._members = members
        self._turns = {service: itertools.cycle(members[service]) for service in SERVICES}

    async def target(self, service: str) -> Target:
        """The leader of the schedulers; of the others each by turns, which for gateways is the one that callers use."""
        members, its = self._members[Service(service)], next(self._turns[Service(service)])
        if service == Service.SCHEDULER:
            its = ([each for each in members if await each.listens()] or [its])[0]
            return Target(lambda: its.pid, ",".join(each.address for each in members))
        return Target(lambda: its.pid, its.address)


@asynccontextmanager
async def running(model: str, logs: Path) -> AsyncIterator[Fleet]:
    """Starts a fleet on free ports, waits until it serves, and drains it at the end. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as scratch:
        members, settings = _members(model, logs, Path(scratch))
        async with asyncio.TaskGroup() as tasks:
            kept = [tasks.create_task(each.keep()) for service in SERVICES for each in members[service]]
            try:
                async with asyncio.TaskGroup() as starting:
                    schedulers, *others = (members[service] for service in SERVICES)
                    for address in (
                        ",".join(each.address for each in schedulers),
                        *(each.address for service in others for each in service),
                    ):
                        starting.create_task(await_serving(address, settings.transport, READY_S))
                async with AsyncClient(",".join(each.address for each in members[Service.GATEWAY])) as client:
                    yield Fleet(client, model, members)
            finally:
                for task in reversed(kept):
                    task.cancel()


def _members(model: str, logs: Path, scratch: Path) -> tuple[dict[Service, list[Member]], Settings]:
    """The members by service, and the settings that they share."""
    names = [(service, number) for service in SERVICES for number in range(NUM_EACH)]
    ports = free_ports([f"{service}-{number}" for service, number in names])
    addresses = {
        service: [f"127.0.0.1:{ports[f'{service}-{number}']}" for number in range(NUM_EACH)] for service in SERVICES
    }
    schedulers = ",".join(addresses[Service.SCHEDULER])
    settings = load_settings(
        None,
        {
            "scheduler": {"leadership": f"file:{scratch / 'leader'}"},
            "gateway": {"scheduler": schedulers, "preprocess": "inline"},
            "executor": {
                "scheduler": schedulers,
                "models": (model,),
                "threads": max(1, (os.cpu_count() or 1) // NUM_EACH),
            },
            "results": {"store": str(scratch / "results.db")},
        },
    )
    logs.mkdir(parents=True, exist_ok=True)
    members = {
        service: [
            Member(service, settings, address, logs / f"fleet-{service}-{number}.log")
            for number, address in enumerate(addresses[service])
        ]
        for service in SERVICES
    }
    return members, settings
