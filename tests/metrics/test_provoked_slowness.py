"""Provoked for real: an executor that is slower than its peer, one that becomes slower, a gateway that is the limit."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from headrace.client import AsyncClient
from headrace.core.errors import HeadraceError
from headrace.models import reference

BOUND_S = 120


@asynccontextmanager
async def busy(gateway: str, num_calls: int) -> AsyncIterator[None]:
    """So many answers under way, one after the other, until the block ends."""

    async def ask(client: AsyncClient, number: int) -> None:
        while True:
            with suppress(HeadraceError):
                await client.generate(
                    reference.NAME, f"long {number}", max_tokens=4000, ignore_eos=True, timeout_s=BOUND_S
                )

    async with AsyncClient(gateway) as client, asyncio.TaskGroup() as asking:
        calls = [asking.create_task(ask(client, number)) for number in range(num_calls)]
        try:
            yield
        finally:
            for call in calls:
                call.cancel()


async def test_a_straggler_is_named(fleet: Any) -> None:
    async with fleet({"reference_step_ms": 4}, {"reference_step_ms": 24}) as services, busy(services.gateway, 8):
        found = await services.finding("straggler")
        assert found.evidence.startswith(services.metrics[2])
        assert "its peer that takes" in found.evidence


async def test_a_device_that_becomes_slower_is_named(fleet: Any) -> None:
    async with fleet({"reference_step_ms": 5}) as services, busy(services.gateway, 2):
        await asyncio.sleep(1.0)  # what is usual is learnt
        slowed = asyncio.create_task(services.finding("device slowed down"))
        while not slowed.done():
            services.executors[0].send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.4)
            services.executors[0].send_signal(signal.SIGCONT)
            await asyncio.sleep(0.2)
        assert services.metrics[1] in (await slowed).evidence


async def test_a_gateway_without_permits_is_named_while_devices_have_room(watching: Any) -> None:
    executor = {"reference_step_ms": 5, "num_slots": 64}
    async with watching(gateway={"max_requests": 4}, executor=executor) as suite, busy(suite.gateway, 8):
        found = await suite.finding("gateway is the limit")
        assert "its 4 requests are taken" in found.evidence
