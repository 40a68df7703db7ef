"""A second scheduler stands by for one that is killed, or paused and then does not come back."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.client import AsyncClient
from headrace.models import reference
from headrace.standalone.services import Service

PATIENCE_S = 120
ASKED = {"max_tokens": 60, "ignore_eos": True, "temperature": 2.0, "seed": 5}


def free_address() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


@asynccontextmanager
async def pair(fleet: Any, folder: Path) -> AsyncIterator[tuple[Any, Any, "asyncio.Task[Any]", AsyncClient]]:
    """A fleet, its leader, the start of its standby (over once that leads), a client."""
    first, second = free_address(), free_address()
    leadership = {"listen": first, "leadership": f"file:{folder / 'lease'}", "leadership_ms": 1000}
    async with fleet(executors=0, scheduler=leadership, transport={"keepalive_ms": 1000}) as it:
        leader = it.scheduler
        both = {"scheduler": f"{first},{second}"}
        it.settings = it.settings.model_copy(
            update={name: getattr(it.settings, name).model_copy(update=both) for name in ("gateway", "executor")}
        )
        standby = asyncio.create_task(it.start(Service.SCHEDULER, second))
        await it.start(Service.EXECUTOR)
        gateway = await it.gateway()
        try:
            yield it, leader, standby, await it.client(gateway.address)
        finally:
            standby.cancel()
            await asyncio.wait([standby])


async def answer(client: AsyncClient) -> str:
    return (await client.generate(reference.NAME, "Hello", timeout_s=PATIENCE_S, **ASKED)).text


async def test_a_killed_leader_is_followed_and_no_stream_notices(fleet: Any, tmp_path: Path) -> None:
    async with pair(fleet, tmp_path) as (_, leader, standby, client), asyncio.timeout(PATIENCE_S):
        undisturbed = await answer(client)
        running = asyncio.create_task(answer(client))
        await asyncio.sleep(0.2)
        assert not standby.done()
        leader.kill()
        assert await answer(client) == undisturbed  # placed by the standby
        assert await running == undisturbed
        await standby


async def test_a_paused_leader_is_followed_and_ends_when_it_goes_on(fleet: Any, tmp_path: Path) -> None:
    async with pair(fleet, tmp_path) as (_, leader, standby, client), asyncio.timeout(PATIENCE_S):
        undisturbed = await answer(client)
        leader.pause()
        await standby
        assert await answer(client) == undisturbed
        leader.go_on()
        assert await leader.process.wait() != 0
        assert await answer(client) == undisturbed
