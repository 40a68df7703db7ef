"""`headrace doctor` names what befalls processes: an executor that is held up, killed, and no longer there.

Each service is a process of its own, found by the addresses of their metrics as in a fleet.
"""

import asyncio
import signal
from contextlib import suppress
from typing import Any

import typer
from typer.testing import CliRunner

from headrace.cli.doctor import doctor
from headrace.client import AsyncClient
from headrace.core.errors import HeadraceError
from headrace.models import reference

BOUND_S = 120


async def test_an_executor_is_held_up_then_lost_then_there_is_none(fleet: Any) -> None:
    async def ask(client: AsyncClient, number: int) -> None:
        with suppress(HeadraceError):  # its executor will be killed, and there is no other
            await client.generate(reference.NAME, f"long {number}", max_tokens=4000, ignore_eos=True, timeout_s=BOUND_S)

    async with (
        fleet({"reference_step_ms": 5}) as services,
        AsyncClient(services.gateway) as client,
        asyncio.TaskGroup() as asking,
    ):
        answer = await client.generate(reference.NAME, "ready", max_tokens=100, ignore_eos=True, timeout_s=BOUND_S)
        assert len(answer.token_ids) == 100  # as many steps tell the executor how long one takes
        calls = [asking.create_task(ask(client, number)) for number in range(2)]
        held_up = asyncio.create_task(services.finding("late steps"))
        while not held_up.done():
            services.executors[0].send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            services.executors[0].send_signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
        assert services.metrics[1] in (await held_up).evidence
        before = await services.look()
        services.executors[0].kill()
        await services.finding("executor lost", before)
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
