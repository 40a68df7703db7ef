"""A peer's driver process: started in its environment, asked over a pipe, stopped with everything it started.

While it is not being asked it is suspended, so that no idle thread of a peer costs anybody else a cycle.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.benchmarks.peers.environment import Environment, last_line
from headrace.core.errors import Unavailable

READY_S = 1200.0  # vLLM compiles at its first start
STOP_S = 20.0
MAX_LINE_BYTES = 64 * 2**20


class Driver:
    """A running driver. `ready` is what it said of itself: versions and options."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.ready: Mapping[str, Any] = {}
        self._process = process
        self._log = log

    async def ask(self, command: Mapping[str, Any], bound_s: float) -> dict[str, Any]:
        """One command's result. Raises Unavailable where the driver fails, ends or takes longer than `bound_s`."""
        pipe = self._process.stdin
        if pipe is None:
            raise Unavailable(f"{self.name}: its driver has no pipe")
        with self._running():
            with suppress(ConnectionError):  # its end shows when reading
                pipe.write(json.dumps(command).encode() + b"\n")
                await pipe.drain()
            answer = await self.read(bound_s)
        if "result" not in answer:
            raise Unavailable(f"{self.name}: {answer.get('error', answer)}")
        return dict(answer["result"])

    async def read(self, bound_s: float) -> Mapping[str, Any]:
        """The driver's next line."""
        stdout = self._process.stdout
        try:
            async with asyncio.timeout(bound_s):
                line = await stdout.readline() if stdout else b""
        except TimeoutError as error:
            raise Unavailable(f"{self.name}: no answer within {bound_s:g} s (see {self._log})") from error
        if not line:
            raise Unavailable(f"{self.name}: its driver ended: {last_line(self._log)} (see {self._log})")
        return dict(json.loads(line))

    def suspend(self) -> None:
        self._signal(signal.SIGSTOP)

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.suspend()

    async def stop(self) -> None:
        """Ends the driver and its children: by end of input, else by force."""
        self._signal(signal.SIGCONT)
        if self._process.stdin:
            self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        self._signal(signal.SIGKILL)  # the whole group: what the driver left behind, too
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def start_driver(
    name: str, module: str, environment: Environment, options: Mapping[str, Any], log: Path
) -> AsyncIterator[Driver]:
    """Starts `python -m module OPTIONS` in the environment and waits until it is ready. Raises Unavailable."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        process = await asyncio.create_subprocess_exec(
            environment.python,
            "-m",
            module,
            json.dumps(options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            env=environment.variables(),
            cwd=environment.folder,
            start_new_session=True,
            limit=MAX_LINE_BYTES,
        )
    driver = Driver(name, process, log)
    try:
        driver.ready = dict((await driver.read(READY_S))["ready"])
        driver.suspend()
        yield driver
    finally:
        await driver.stop()
