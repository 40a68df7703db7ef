"""Quotas: who is over one is refused before any work and hears when to come back; nobody else notices."""

import asyncio
import logging
from threading import Thread

import fakeredis
import pytest
from limits.aio.storage import MemoryStorage

from headrace.chassis.config import TenantQuota, TenantsSettings
from headrace.core.errors import InvalidRequest, TenantOverLimit, Unavailable
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.quotas import Quotas
from headrace.gateway.tenants.windows import Windows, open_windows, room_in_s


def caller(tenant="mills", **quota):
    return Caller(tenant, TenantQuota(**quota))


class Clock:
    """The windows' clock, in seconds; it stands still unless it is moved."""

    def __init__(self):
        self.now = 600_000_030.0

    def time(self):
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("limits.aio.storage.memory.time", clock)
    return clock


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine's Redis is not away."""
    monkeypatch.setattr("headrace.gateway.tenants.windows.REDIS_S", 60.0)


@pytest.fixture
def quotas():
    return Quotas(Windows(MemoryStorage(), refuse=False))


async def forever(member, send):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("free", "previous", "previous_left", "current", "current_left", "expected"),
    [
        (10, 0, 0, 10, 30, 0),  # there is room
        (10, 20, 40, 5, 40, 25),  # 20 must weigh 5 more at most: 15 s left of it
        (0, 20, 40, 0, 40, 40),
        (0, 0, 0, 10, 40, 100),  # this window, and then all of the next
        (5, 7, 40, 10, 40, 70),  # half of what is counted now must go
    ],
)
def test_when_there_is_room(free, previous, previous_left, current, current_left, expected):
    assert room_in_s(free, 60, previous, previous_left, current, current_left) == pytest.approx(expected)


async def test_calls_at_once(quotas):
    both = caller(max_requests=2)
    with quotas.place(both), quotas.place(both), quotas.place(caller("weir", max_requests=1)):
        assert quotas.num_running == 3
        with pytest.raises(TenantOverLimit) as refused, quotas.place(both):
            pass
        assert refused.value.limit == "2 requests at once"
        assert refused.value.retry_after_s
    assert quotas.num_running == 0
    with quotas.place(both), quotas.place(caller()):
        assert quotas.num_running == 1


async def test_requests_a_minute(quotas):
    few = caller(requests_per_minute=2)
    await quotas.take(few, 10**9)
    await quotas.take(few, 10**9)
    with pytest.raises(TenantOverLimit) as refused:
        await quotas.take(few, 1)
    assert refused.value.limit == "2 requests a minute"
    assert 0 < refused.value.retry_after_s <= 120
    await quotas.take(caller("weir", requests_per_minute=2), 1)


@pytest.mark.parametrize(("used", "pause_s", "cost"), [(1000, 0, 400), (1000, 45, 400), (700, 50, 1000), (500, 0, 501)])
async def test_there_is_room_when_it_says_and_not_before(quotas, clock, used, pause_s, cost):
    some = caller(tokens_per_minute=1000)
    await quotas.charge(some, used)
    clock.now += pause_s
    with pytest.raises(TenantOverLimit) as refused:
        await quotas.charge(some, cost)
    clock.now += refused.value.retry_after_s * 0.9
    with pytest.raises(TenantOverLimit):
        await quotas.charge(some, cost)
    clock.now += refused.value.retry_after_s * 0.1 + 0.001
    await quotas.charge(some, cost)


async def test_tokens_a_minute_are_looked_for_first_and_charged_later(quotas):
    some = caller(tokens_per_minute=1000)
    await quotas.take(some, 900)
    await quotas.take(some, 900)  # nothing has been charged yet
    await quotas.charge(some, 600)
    with pytest.raises(TenantOverLimit) as refused:
        await quotas.take(some, 500)
    assert refused.value.limit == "1000 tokens a minute"
    assert 0 < refused.value.retry_after_s <= 120
    with pytest.raises(TenantOverLimit):
        await quotas.charge(some, 500)
    await quotas.charge(some, 400)
    with pytest.raises(InvalidRequest) as hopeless:
        await quotas.charge(some, 1001)
    assert hopeless.value.limit == "1000 tokens a minute"


async def test_a_refused_call_does_not_count_as_one(quotas):
    some = caller(tokens_per_minute=10, requests_per_minute=1)
    await quotas.charge(some, 10)
    with pytest.raises(TenantOverLimit, match="tokens"):
        await quotas.take(some, 5)
    await quotas.take(caller(requests_per_minute=1), 5)


async def test_a_gateway_refuses_one_tenant_and_serves_the_others(world, until):
    async with world(default={"max_requests": 1}) as w:
        w.executor.script = forever
        mills, weir = await w.client(tenant="mills"), await w.client(tenant="weir")
        running = [asyncio.create_task(client.generate("bytes", "x")) for client in (mills, weir)]
        await until(lambda: len(w.executor.started) == 2)
        before = w.held()
        with pytest.raises(TenantOverLimit) as refused:
            await mills.generate("bytes", "x")
        assert refused.value.retry_after_s == 0.5
        assert (w.held(), len(w.scheduler.submissions)) == (before, 2)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await w.idle()
        w.executor.started.clear()
        task = asyncio.create_task(mills.generate("bytes", "x"))
        await until(lambda: len(w.executor.started) == 1)
        task.cancel()
        await asyncio.wait([task])


async def test_a_gateway_counts_real_tokens(world):
    """An estimate of 100 answer tokens and the prompt's; 100 and one are charged."""
    async with world(default={"tokens_per_minute": 310}) as w:
        client = await w.client()
        for _ in range(2):
            await client.generate("bytes", "x", max_tokens=100)
        with pytest.raises(TenantOverLimit, match="tokens") as refused:
            await client.generate("bytes", "x", max_tokens=200)
        assert refused.value.retry_after_s > 0
        assert len(w.scheduler.submissions) == 2
        await (await w.client(tenant="weir")).generate("bytes", "x", max_tokens=200)
        await w.idle()


@pytest.fixture
def redis():
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_gateways_count_together_in_redis(redis):
    settings = TenantsSettings(redis=redis)
    some = caller(requests_per_minute=2, tokens_per_minute=100)
    async with open_windows(settings) as one, open_windows(settings) as other:
        first, second = Quotas(one), Quotas(other)
        await first.take(some, 1)
        await second.take(some, 1)
        with pytest.raises(TenantOverLimit) as refused:
            await first.take(some, 1)
        assert 0 < refused.value.retry_after_s <= 120
        await second.charge(some, 90)
        with pytest.raises(TenantOverLimit, match="tokens"):
            await first.charge(some, 20)


@pytest.mark.parametrize("refuse", [False, True])
async def test_redis_that_is_away(refuse, caplog):
    caplog.set_level(logging.WARNING)
    now = 0.0
    settings = TenantsSettings(redis="redis://127.0.0.1:1", redis_away="refuse" if refuse else "allow")
    some = caller(requests_per_minute=1)
    async with open_windows(settings) as windows:
        windows._clock = lambda: now
        quotas = Quotas(windows)

        async def take():
            if refuse:
                with pytest.raises(Unavailable):
                    await quotas.take(some, 1)
            else:
                await quotas.take(some, 1)

        for moment in (0.0, 0.5, 10.0, 59.0):
            now = moment
            await take()
        assert len(caplog.records) == 1
        now = 61.0
        await take()
        assert len(caplog.records) == 2
