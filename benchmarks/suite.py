"""Our side of a measurement: `headrace up` as users start it, several processes, called through the Python client."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

from headrace.benchmarks.peers.environment import last_line
from headrace.chassis.config import TransportSettings
from headrace.client import AsyncClient
from headrace.client.values import Qos
from headrace.core.errors import Unavailable
from headrace.standalone.readiness import await_serving

READY_S = 180.0
STOP_S = 60.0


class Suite:
    """A running suite and a client of it. `pid` is the supervisor's, the services are addresses."""

    def __init__(self, client: AsyncClient, model: str, pid: int, gateway: str, scheduler: str, executor: str) -> None:
        self.client = client
        self.model = model
        self.pid = pid
        self.gateway = gateway
        self.scheduler = scheduler
        self.executor = executor

    @property
    def addresses(self) -> dict[str, str]:
        """By service."""
        return {"gateway": self.gateway, "scheduler": self.scheduler, "executor": self.executor}

    async def stream(self, prompt: Sequence[int], max_tokens: int, qos: str = "normal") -> AsyncIterator[int]:
        """Tokens of each piece; the shape that the closed loop drives."""
        async for piece in self.client.stream(
            self.model, prompt, qos=cast(Qos, qos), max_tokens=max_tokens, ignore_eos=True
        ):
            yield len(piece.token_ids)


@asynccontextmanager
async def started(
    model: str, log: Path, settings: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> AsyncIterator[Suite]:
    """Starts the suite on free ports, waits until it serves, drains it at the end; `settings` as HEADRACE_* variables,
    `options` of `headrace up`.

    Raises Unavailable.
    """
    ports = free_ports(("GATEWAY", "SCHEDULER", "EXECUTOR", "PREPROCESS"))
    addresses = {f"HEADRACE_{service}__LISTEN": f"127.0.0.1:{port}" for service, port in ports.items()}
    addresses["HEADRACE_ENCODER__MODEL"] = ""  # a decoder's measurement has the machine for itself
    addresses["HEADRACE_GATEWAY__SCHEDULER"] = addresses["HEADRACE_SCHEDULER__LISTEN"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli.main", "up", "--preprocess", "inline", "--model", model, *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | (settings or {}) | addresses,
            start_new_session=True,
        )
    gateway = addresses["HEADRACE_GATEWAY__LISTEN"]
    serving = (gateway, addresses["HEADRACE_EXECUTOR__LISTEN"])  # a gateway serves before its executors have loaded
    try:
        await _await_ready(process, serving, log)
        async with AsyncClient(gateway, retries=0) as client:
            yield Suite(
                client,
                model,
                process.pid,
                gateway,
                addresses["HEADRACE_SCHEDULER__LISTEN"],
                addresses["HEADRACE_EXECUTOR__LISTEN"],
            )
    finally:
        await stop(process)


async def _await_ready(process: asyncio.subprocess.Process, addresses: Sequence[str], log: Path) -> None:
    """Until all addresses serve. Raises Unavailable as soon as the process ends, or after READY_S."""
    serving = asyncio.gather(*(await_serving(address, TransportSettings(), READY_S) for address in addresses))
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise Unavailable(f"headrace up ended: {last_line(log)} (see {log})")
        await serving
    finally:
        serving.cancel()
        ended.cancel()
        await asyncio.gather(serving, ended, return_exceptions=True)


async def stop(process: asyncio.subprocess.Process, within_s: float = STOP_S) -> None:
    """Has it drain and end, and kills it after `within_s`."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


def free_ports(services: Sequence[str]) -> dict[str, int]:
    """Ports free now, all different."""
    sockets = [socket.socket() for _ in services]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return {service: probe.getsockname()[1] for service, probe in zip(services, sockets, strict=True)}
    finally:
        for probe in sockets:
            probe.close()
