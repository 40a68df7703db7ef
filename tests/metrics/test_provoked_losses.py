"""`headrace doctor` names what befalls processes: an executor that is held up, killed, and no longer there.

Each service is a process of its own, found by the addresses of their metrics as in a fleet.
"""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.chassis.config import Settings, load_settings
from headrace.cli.diagnosis import diagnose
from headrace.cli.doctor import doctor
from headrace.cli.figures import Figures
from headrace.cli.scraping import scraping
from headrace.client import AsyncClient
from headrace.core.errors import HeadraceError
from headrace.models import reference
from headrace.standalone.services import Service

LEASE_MS = 5_000
BOUND_S = 120
SERVICES = (Service.SCHEDULER, Service.EXECUTOR, Service.GATEWAY)


class Services:
    """The processes of a small fleet, and where their metrics are."""

    def __init__(self, gateway: str, executor: Process, metrics: list[str]) -> None:
        self.gateway = gateway
        self.executor = executor
        self.metrics = metrics

    async def finding(self, name: str) -> str:
        """The evidence for the finding of this name, once there is one. Fails where there never is."""
        scrape, found = scraping(None, self.metrics, "", None), []
        before = await asyncio.to_thread(scrape)
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    found = diagnose(Figures(before, await asyncio.to_thread(scrape), 1.0))
                    if evidence := [each.evidence for each in found if each.name == name]:
                        return evidence[0]
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"only seen: {found}")


@asynccontextmanager
async def started(home: Path, first_port: int) -> AsyncIterator[Services]:
    """A scheduler, an executor and a gateway; killed at the end."""
    reference.install(home)
    places = dict(zip(SERVICES, (f"127.0.0.1:{first_port + place}" for place in range(6)), strict=False))
    metrics = [f"127.0.0.1:{first_port + 8 + place}" for place in range(len(SERVICES))]
    scheduler = {"scheduler": places[Service.SCHEDULER]}
    executor = {"engine": "reference", "models": [reference.NAME], "reference_step_ms": 5}
    common: dict[str, Any] = {
        "models": {"home": home},
        "scheduler": {"listen": places[Service.SCHEDULER], "lease_ms": LEASE_MS, "grace_ms": 100},
        "executor": {"listen": places[Service.EXECUTOR], **executor, **scheduler},
        "gateway": {"listen": places[Service.GATEWAY], **scheduler},
    }
    async with AsyncExitStack() as stack:
        processes = {}
        for service, listen in zip(SERVICES, metrics, strict=True):
            settings = load_settings(overrides={**common, "telemetry": {"metrics_listen": listen}})
            processes[service] = await _process(service, settings, stack)
        yield Services(places[Service.GATEWAY], processes[Service.EXECUTOR], metrics)


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


async def test_an_executor_is_held_up_then_lost_then_there_is_none(tmp_path: Path, metrics_port: int) -> None:
    async def ask(client: AsyncClient, number: int) -> None:
        with suppress(HeadraceError):  # its executor will be killed, and there is no other
            await client.generate(reference.NAME, f"long {number}", max_tokens=4000, ignore_eos=True, timeout_s=BOUND_S)

    async with (
        started(tmp_path, metrics_port) as services,
        AsyncClient(services.gateway) as client,
        asyncio.TaskGroup() as asking,
    ):
        answer = await client.generate(reference.NAME, "ready", max_tokens=100, ignore_eos=True, timeout_s=BOUND_S)
        assert len(answer.token_ids) == 100  # as many steps tell the executor how long one takes
        calls = [asking.create_task(ask(client, number)) for number in range(2)]
        held_up = asyncio.create_task(services.finding("late steps"))
        while not held_up.done():
            services.executor.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            services.executor.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
        assert services.metrics[1] in await held_up
        losing = asyncio.create_task(services.finding("executor lost"))
        await asyncio.sleep(0)
        services.executor.kill()
        await losing
        await services.finding("no executor")
        output = await asyncio.to_thread(_doctor, *(f"--at={address}" for address in services.metrics))
        assert "no executor: none is ready" in output
        for call in calls:
            call.cancel()


def _doctor(*options: str) -> str:
    app = typer.Typer()
    app.command()(doctor)
    result = CliRunner().invoke(app, ["--seconds", "0.5", *options])
    assert result.exit_code == 0, result.exception
    return result.output
