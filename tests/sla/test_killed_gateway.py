"""A gateway is killed, and another of the same store has its results and goes on with them. Real processes, each a
command: with SQLite the next gateway, with Redis one that was there all along."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace.chassis.config import TransportSettings
from headrace.client import Answer, AsyncClient, FinishReason, Result, ResultState
from headrace.client.codec import answers
from headrace.models import reference
from headrace.standalone.readiness import await_serving

BOUND_S = 120
STEP_MS = 20
SHORT, LONG = 40, 400
"""Tokens: of an answer that is soon made, and of one that outlasts its gateway."""


def free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]


@contextmanager
def running(service: str, environment: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OTEL_"))}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", service], env=clean | environment, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def partial(client: AsyncClient, max_tokens: int) -> Answer:
    """Tried again where the gateway was stopped for as long as a whole answer takes."""
    for _ in range(5):
        answer = await client.generate("reference", "abc", max_tokens=max_tokens, ignore_eos=True, sla_total_ms=1)
        if answer.finish_reason is FinishReason.PARTIAL:
            return answer
    pytest.fail("every answer was whole after a millisecond")


async def result(client: AsyncClient, handle: str, wanted: Callable[[Result], bool]) -> Result:
    async with asyncio.timeout(BOUND_S):
        while True:
            found = next(each for each in await client.list_results() if each.handle == handle)
            if wanted(found):
                return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_what_was_made_is_found_and_what_was_not_is_finished(
    tmp_path: Path, redis_server: Callable[[Path], AbstractContextManager[int]], store: str
) -> None:
    reference.install(tmp_path)
    scheduler, executor, first, second = free_ports(4)
    settings = {
        "HEADRACE_MODELS__HOME": str(tmp_path),
        "HEADRACE_SCHEDULER__LISTEN": scheduler,
        "HEADRACE_GATEWAY__SCHEDULER": scheduler,
        "HEADRACE_EXECUTOR__SCHEDULER": scheduler,
        "HEADRACE_EXECUTOR__LISTEN": executor,
        "HEADRACE_EXECUTOR__ENGINE": "reference",
        "HEADRACE_EXECUTOR__MODELS": "reference",
        "HEADRACE_EXECUTOR__REFERENCE_STEP_MS": str(STEP_MS),
        "HEADRACE_RESULTS__PROGRESS_S": "0.1",
        "HEADRACE_RESULTS__LOST_AFTER_S": "2",
    }
    log = tmp_path / "services.log"
    with ExitStack() as stack:
        if store == "redis":
            port = stack.enter_context(redis_server(tmp_path))
            settings["HEADRACE_RESULTS__STORE"] = f"redis://127.0.0.1:{port}"
        stack.enter_context(running("scheduler", settings, log))
        stack.enter_context(running("executor", settings, log))
        gateway = stack.enter_context(running("gateway", settings | {"HEADRACE_GATEWAY__LISTEN": first}, log))
        there = [executor, first]
        if store == "redis":
            stack.enter_context(running("gateway", settings | {"HEADRACE_GATEWAY__LISTEN": second}, log))
            there.append(second)
        for address in there:
            await await_serving(address, TransportSettings(), BOUND_S)
        async with AsyncClient(first) as client:
            undisturbed = await client.generate("reference", "abc", max_tokens=LONG, ignore_eos=True)
            made, cut = await partial(client, SHORT), await partial(client, LONG)
            assert made.result is not None
            assert cut.result is not None
            await result(client, made.result.handle, lambda each: each.state is ResultState.FINISHED)
            before = await result(client, cut.result.handle, lambda each: each.num_pieces > 1)
            gateway.send_signal(signal.SIGKILL)
            gateway.wait()
        if store == "sqlite":
            stack.enter_context(running("gateway", settings | {"HEADRACE_GATEWAY__LISTEN": second}, log))
            await await_serving(second, TransportSettings(), BOUND_S)
        async with AsyncClient(second) as client:
            (whole,) = answers([piece async for piece in client.attach_result(made.result.handle)])
            assert whole.token_ids == undisturbed.token_ids[:SHORT]
            assert whole.finish_reason is FinishReason.LENGTH
            assert before.num_tokens < LONG
            rest = [piece async for piece in client.attach_result(cut.result.handle, cut.result.offset)]
            assert len(cut.token_ids) + sum(len(piece.token_ids) for piece in rest) == LONG
            (finished,) = answers([piece async for piece in client.attach_result(cut.result.handle)])
            assert (finished.token_ids, finished.text) == (undisturbed.token_ids, undisturbed.text)
            assert finished.finish_reason is FinishReason.LENGTH
            assert finished.usage == undisturbed.usage
