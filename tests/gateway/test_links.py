"""Streams between services: what gathers in a frame, and when a stream to an executor goes."""

import asyncio

from headrace.chassis.config import TransportSettings
from headrace.gateway.executor_link import ExecutorPool
from headrace.gateway.frames import Outbox


async def test_a_frame_carries_what_has_gathered():
    outbox = Outbox[str](max_frame_bytes=100)
    outbox.put("a", "A", 1)
    outbox.put("b", "B", 1)
    outbox.cancel("c")
    assert await outbox.take() == (["A", "B"], ["c"])


async def test_a_cancelled_item_that_has_not_left_never_leaves():
    outbox = Outbox[str](max_frame_bytes=100)
    outbox.put("a", "A", 1)
    outbox.cancel("a")
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put("b", "B", 1)
    assert await taking == (["B"], [])


async def test_a_frame_stays_within_its_size_but_carries_one_item_at_least():
    outbox = Outbox[str](max_frame_bytes=100)
    for name in "abc":
        outbox.put(name, name.upper(), 60 if name != "a" else 300)
    assert [(await outbox.take())[0] for _ in "abc"] == [["A"], ["B"], ["C"]]


async def test_an_idle_stream_is_closed(world, until):
    async with world() as w, asyncio.TaskGroup() as tasks:
        pool = ExecutorPool(tasks, TransportSettings(), lambda _: None, idle_s=0.1)
        link = pool.link(w.executor_address)
        assert pool.link(w.executor_address) is link
        assert pool.num_links == 1
        await until(lambda: pool.num_links == 0)
        await until(lambda: w.executor.num_streams == 0)
