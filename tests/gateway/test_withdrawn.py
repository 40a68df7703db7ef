"""A placement that its executor never hears of is given back to the scheduler at once."""

import asyncio

import numpy as np
import pytest
from opentelemetry.trace import INVALID_SPAN_CONTEXT

from headrace.chassis.config import TransportSettings
from headrace.core.errors import DeadlineMissed, Unavailable
from headrace.core.model import ModelInfo
from headrace.core.request import Precision, QosClass, Sampling
from headrace.gateway import executor_link
from headrace.gateway.answer import Answer
from headrace.gateway.executor_link import ExecutorPool
from headrace.gateway.generation import Generation, Placement
from headrace.gateway.relay import Relay

MODEL = ModelInfo("m", "decoder", "d", 10**7, 256, (0,))
NOWHERE = "127.0.0.1:1"


class Silent:
    def push(self, token_ids):
        return ""

    def flush(self):
        return ""


def placed(wire_id: str) -> tuple[Relay, Placement]:
    generation = Generation(
        wire_id,
        wire_id,
        MODEL,
        np.ones(3, np.uint32),
        Sampling(),
        QosClass.NORMAL,
        Precision.ANY,
        "t",
        None,
        INVALID_SPAN_CONTEXT,
    )
    relay = Relay(generation, [Answer(Silent(), generation.sampling, ())], 8)
    placement = Placement("e", NOWHERE, "b", 1, Precision.FP16, INVALID_SPAN_CONTEXT)
    relay.place(placement)
    return relay, placement


async def test_a_deadline_in_the_moment_of_its_placement(world, until, monkeypatch):
    place = Relay.place

    def expired_first(relay, placement):
        relay.expire()
        return place(relay, placement)

    async with world() as w:
        monkeypatch.setattr(Relay, "place", expired_first)
        with pytest.raises(DeadlineMissed):
            await w.client.generate("bytes", "x")
        await until(lambda: w.scheduler.cancelled == [w.scheduler.submissions[0].request_id])
        await w.idle()
        assert not w.executor.starts


async def test_a_caller_that_leaves_in_the_moment_of_its_placement(world, until, monkeypatch):
    place, calls = Relay.place, []

    def then_cancelled(relay, placement):
        taken = place(relay, placement)
        calls[0].cancel()
        return taken

    async with world() as w:
        prepare = w.preparer.prepare

        async def noting_the_call(*arguments):
            calls.append(asyncio.current_task())
            return await prepare(*arguments)

        w.preparer.prepare = noting_the_call
        monkeypatch.setattr(Relay, "place", then_cancelled)
        call = asyncio.create_task(w.client.generate("bytes", "x"))
        await until(lambda: w.scheduler.cancelled != [])
        assert w.scheduler.cancelled == [w.scheduler.submissions[0].request_id]
        call.cancel()
        await w.idle()
        assert not w.executor.starts


async def test_an_executor_that_nobody_reaches(world, until):
    async with world(max_failovers=0) as w:
        w.scheduler.executors[0] = NOWHERE
        with pytest.raises(Unavailable):
            await w.client.generate("bytes", "x")
        await until(lambda: w.scheduler.cancelled == [w.scheduler.submissions[0].request_id])
        await w.idle()


async def test_a_start_that_is_cancelled_before_its_frame_goes_out():
    told = []
    async with asyncio.TaskGroup() as tasks:
        pool = ExecutorPool(tasks, TransportSettings(), told.append)
        relay, placement = placed("a")
        with pool.link(NOWHERE).running(relay, placement):
            pass
        assert told == ["a"]
        pool.close()


async def test_a_start_that_is_cancelled_while_its_stream_is_being_connected():
    told, connected = [], asyncio.Event()
    mute = await asyncio.start_server(lambda reader, writer: connected.set(), "127.0.0.1", 0)
    host, port = mute.sockets[0].getsockname()
    async with mute, asyncio.TaskGroup() as tasks:
        pool = ExecutorPool(tasks, TransportSettings(), told.append)
        relay, placement = placed("a")
        with pool.link(f"{host}:{port}").running(relay, placement):
            async with asyncio.timeout(20):
                await connected.wait()
        assert told == ["a"]
        pool.close()


class StuckCall:
    """A stream that takes no bytes and then is lost."""

    def __init__(self):
        self.written = asyncio.Event()
        self.lost = asyncio.Event()

    def __call__(self, channel):
        return self

    def Execute(self):
        return self

    async def wait_for_connection(self):
        pass

    async def write(self, frame):
        self.written.set()
        await self.lost.wait()
        raise asyncio.InvalidStateError

    async def __aiter__(self):
        await self.lost.wait()
        return
        yield

    def cancel(self):
        pass


async def test_a_start_that_is_cancelled_while_its_frame_is_stuck_and_then_lost(until, monkeypatch):
    told, call = [], StuckCall()
    monkeypatch.setattr(executor_link, "ExecutorServiceStub", call)
    async with asyncio.TaskGroup() as tasks:
        pool = ExecutorPool(tasks, TransportSettings(), told.append)
        relay, placement = placed("a")
        with pool.link(NOWHERE).running(relay, placement):
            async with asyncio.timeout(20):
                await call.written.wait()
        assert told == []  # it may yet arrive: its cancellation waits behind it
        call.lost.set()
        await until(lambda: pool.num_links == 0)
        assert told == ["a"]
