"""Waiting for SERVING: from a server that becomes ready, from one that does not, from nobody."""

import asyncio

import pytest

from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.core.errors import Unavailable
from headrace.standalone.readiness import await_serving

TRANSPORT = TransportSettings(drain_s=0.1)


async def test_returns_when_the_server_becomes_ready() -> None:
    async with serve("127.0.0.1:0", TRANSPORT, lambda server: None, []) as handle:
        waiting = asyncio.create_task(await_serving(handle.address, TRANSPORT, 60))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        await handle.set_ready(True)
        await waiting


async def test_names_the_server_that_does_not() -> None:
    async with serve("127.0.0.1:0", TRANSPORT, lambda server: None, []) as handle:
        with pytest.raises(Unavailable, match=f"{handle.address} was not ready"):
            await await_serving(handle.address, TRANSPORT, 0.2)


async def test_and_the_address_where_nobody_listens() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 was not ready"):
        await await_serving("127.0.0.1:1", TRANSPORT, 0.2)
