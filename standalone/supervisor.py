"""Each service as a process of its own on this machine: starts them, watches them, stops them in drain order.

A child that ends, for whatever reason, ends the suite. Children outlive nobody: their standard input closes with the
supervisor, and they leave on that.
"""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NoReturn

from headrace.chassis.config import Settings, TransportSettings
from headrace.core.errors import HeadraceError, Unavailable
from headrace.standalone.readiness import START_S, await_serving
from headrace.standalone.services import CALLED_BY_OTHERS, OnServing, Service, Suite, cause, layout, metered, wired

KILL_AFTER_S = 5.0
"""Beyond transport.drain_s: what a drained process may still take to end."""

TAIL_LINES = 12


class ServiceFailed(HeadraceError):
    """A service's process ended by itself. `log_tail` is the end of its log where that says more than the message."""

    reason = "SERVICE_FAILED"

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


class Child:
    """A service's process. `address` is known once it listens."""

    def __init__(self, service: Service, process: Process, log: Path) -> None:
        self.service = service
        self.process = process
        self.log = log
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def watch(self) -> NoReturn:
        """Takes the child's reports until it ends; then raises ServiceFailed."""
        error = ""
        while line := await self._reports.readline():
            report = json.loads(line)
            error = report.get("error", "")
            if "address" in report:
                self.address.set_result(report["address"])
        code = await self.process.wait()
        if error:
            raise ServiceFailed(f"{self.service}: {error}")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        raise ServiceFailed(f"{self.service} {how}, so the suite stops; its log is {self.log}", "\n".join(tail))

    @property
    def _reports(self) -> asyncio.StreamReader:
        if self.process.stdout is None:
            raise RuntimeError("a child has a pipe for its reports")
        return self.process.stdout

    async def stop(self, bound_s: float) -> None:
        """Asks the process to drain; kills it after `bound_s`, or at once where this is cancelled."""
        try:
            if self.process.returncode is None:
                self.process.terminate()
            async with asyncio.timeout(bound_s):
                await self.process.wait()
        except TimeoutError:
            pass
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()


@asynccontextmanager
async def _child(service: Service, settings: Settings, folder: Path) -> AsyncIterator[Child]:
    log = folder / f"{service}.log"
    with log.open("wb") as stderr:
        # a process group of its own: Ctrl-C in the terminal is for the supervisor, which drains in order
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.standalone.process", service),
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            process_group=0,
        )
    child = Child(service, process, log)
    try:
        if process.stdin is None:
            raise RuntimeError("a child has a pipe for its settings")
        process.stdin.write(settings.model_dump_json().encode() + b"\n")
        yield child
    finally:
        await child.stop(settings.transport.drain_s + KILL_AFTER_S)


@asynccontextmanager
async def supervised(settings: Settings, folder: Path, on_serving: OnServing) -> AsyncIterator[Suite]:
    """A suite that is ready, one process a service, their logs in `folder`; drained when the block ends.

    Raises ServiceFailed as soon as a process ends by itself, Unavailable where one is not ready in time.
    """
    try:
        async with AsyncExitStack() as processes, asyncio.TaskGroup() as watching:
            children: list[Child] = []
            watchers: list[asyncio.Task[NoReturn]] = []
            async with _bounded(children), asyncio.TaskGroup() as starting:
                for service in layout(settings):
                    child = await processes.enter_async_context(_child(service, metered(settings, service), folder))
                    children.append(child)
                    watchers.append(watching.create_task(child.watch()))
                    starting.create_task(_ready(child, settings.transport, on_serving))
                    if service in CALLED_BY_OTHERS:
                        settings = wired(settings, service, await child.address)
            yield Suite({child.service: child.address.result() for child in children})
            for watcher in watchers:
                watcher.cancel()
    except BaseExceptionGroup as group:
        known = cause(group)
        if known is None:
            raise
        raise known from group


async def _ready(child: Child, transport: TransportSettings, on_serving: OnServing) -> None:
    await await_serving(await child.address, transport, START_S)
    on_serving(child.service, child.address.result())


@asynccontextmanager
async def _bounded(children: list[Child]) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(START_S):
            yield
    except TimeoutError as error:
        silent = ", ".join(child.service for child in children if not child.address.done())
        raise Unavailable(f"not listening within {START_S:g} s: {silent}") from error
