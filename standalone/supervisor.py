"""Each service as a process of its own on this machine: starts them, watches them, stops them in drain order.

A child that ends, for whatever reason, ends the suite, unless it is to be started again. Children outlive nobody:
their standard input closes with the supervisor, and they leave on that.
"""

import asyncio
import json
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NoReturn

from headrace.chassis.config import Settings, TransportSettings
from headrace.core.errors import HeadraceError, Unavailable
from headrace.core.role import Role
from headrace.standalone.readiness import START_S, await_serving
from headrace.standalone.services import (
    CALLED_BY_OTHERS,
    ROLES,
    OnServing,
    Part,
    Suite,
    cause,
    listening,
    parts,
    wired,
)

KILL_AFTER_S = 5.0
"""Beyond transport.drain_s: what a drained process may still take to end."""

TAIL_LINES = 12

MAX_RESTARTS = 5
RESTARTS_S = 60.0
"""A process that ends more often than that within this time is not started again."""

RESTART_PAUSE_S = 0.2

log = logging.getLogger(__name__)


class ServiceFailed(HeadraceError):
    """A service's process ended by itself. `log_tail` is the end of its log where that says more than the message."""

    reason = "SERVICE_FAILED"

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


class Child:
    """A service's process. `address` is known once it listens; `again(address)` starts the next one there, if any."""

    def __init__(
        self, name: str, process: Process, log: Path, again: Callable[[str], Awaitable[Process]] | None = None
    ) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._again = again
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS)

    async def watch(self) -> NoReturn:
        """Takes the child's reports, and starts it again where it ends and may be; else raises ServiceFailed."""
        while True:
            error = await self._take_reports()
            code = await self.process.wait()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            if self._again is None or not self._may_start_again():
                if error:
                    raise ServiceFailed(f"{self.name}: {error}")
                tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
                raise ServiceFailed(f"{self.name} {how}, so the suite stops; its log is {self.log}", "\n".join(tail))
            log.warning("%s %s and is started again; its log is %s", self.name, error or how, self.log)
            await asyncio.sleep(RESTART_PAUSE_S)
            self.process = await self._again(self.address.result())

    def _may_start_again(self) -> bool:
        """Not before it has listened once, nor too often."""
        now, last = asyncio.get_running_loop().time(), self._restarts
        if not self.address.done() or (len(last) == MAX_RESTARTS and now - last[0] < RESTARTS_S):
            return False
        last.append(now)
        return True

    async def _take_reports(self) -> str:
        """Until the process ends; the error that it told of."""
        error = ""
        while line := await self._reports.readline():
            report = json.loads(line)
            error = report.get("error", "")
            if "address" in report and not self.address.done():
                self.address.set_result(report["address"])
        return error

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
async def _child(part: Part, settings: Settings, folder: Path, restart: bool) -> AsyncIterator[Child]:
    log, settings = folder / f"{part.name}.log", part.settings(settings)

    async def again(address: str) -> Process:
        return await _start(part, listening(settings, part.service, address), log)

    child = Child(part.name, await _start(part, settings, log), log, again if restart else None)
    try:
        yield child
    finally:
        await child.stop(settings.transport.drain_s + KILL_AFTER_S)


async def _start(part: Part, settings: Settings, log: Path) -> Process:
    with log.open("ab") as stderr:
        # a process group of its own: Ctrl-C in the terminal is for the supervisor, which drains in order
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.standalone.process", part.service),
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            process_group=0,
        )
    if process.stdin is None:
        raise RuntimeError("a child has a pipe for its settings")
    process.stdin.write(settings.model_dump_json().encode() + b"\n")
    return process


@asynccontextmanager
async def supervised(
    settings: Settings, folder: Path, on_serving: OnServing, *, restart: bool = False
) -> AsyncIterator[Suite]:
    """A suite that is ready, one process a service, their logs in `folder`; drained when the block ends.

    Raises ServiceFailed as soon as a process ends by itself, with `restart` only where it does so again and again;
    Unavailable where one is not ready in time.
    """
    try:
        async with AsyncExitStack() as processes, asyncio.TaskGroup() as watching:
            children: list[Child] = []
            watchers: list[asyncio.Task[NoReturn]] = []
            async with _bounded(children), asyncio.TaskGroup() as starting:
                for part in parts(settings):
                    child = await processes.enter_async_context(_child(part, settings, folder, restart))
                    children.append(child)
                    watchers.append(watching.create_task(child.watch()))
                    starting.create_task(_ready(child, part, settings.transport, on_serving))
                    if part.service in CALLED_BY_OTHERS:
                        settings = wired(settings, part.service, await child.address)
            yield Suite({child.name: child.address.result() for child in children})
            for watcher in watchers:
                watcher.cancel()
    except BaseExceptionGroup as group:
        known = cause(group)
        if known is None:
            raise
        raise known from group


async def _ready(child: Child, part: Part, transport: TransportSettings, on_serving: OnServing) -> None:
    await await_serving(await child.address, transport.of(Role.PROBER), START_S, ROLES[part.service])
    on_serving(child.name, child.address.result())


@asynccontextmanager
async def _bounded(children: list[Child]) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(START_S):
            yield
    except TimeoutError as error:
        silent = ", ".join(child.name for child in children if not child.address.done())
        raise Unavailable(f"not listening within {START_S:g} s: {silent}") from error
