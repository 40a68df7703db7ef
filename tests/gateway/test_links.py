"""When a stream to an executor goes."""

import asyncio

from headrace.chassis.config import TransportSettings
from headrace.gateway.executor_link import ExecutorPool


async def test_an_idle_stream_is_closed(world, until):
    async with world() as w, asyncio.TaskGroup() as tasks:
        pool = ExecutorPool(tasks, TransportSettings(), lambda _: None, idle_s=0.1)
        link = pool.link(w.executor_address)
        assert pool.link(w.executor_address) is link
        assert pool.num_links == 1
        await until(lambda: pool.num_links == 0)
        await until(lambda: w.executor.num_streams == 0)
