"""Leases in a file and in Redis, and what becomes of a leader whose lease is lost."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import fakeredis
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis import Redis

from headrace.chassis.channel import open_channel
from headrace.chassis.config import SchedulerSettings, TransportSettings, load_settings
from headrace.chassis.server import serve
from headrace.core.errors import ConfigError, Unavailable
from headrace.scheduler.leadership.file_lease import FileLease
from headrace.scheduler.leadership.leading import leading
from headrace.scheduler.leadership.lease import Lease
from headrace.scheduler.leadership.opening import open_lease
from headrace.scheduler.leadership.redis_lease import RedisLease

LONG_S = 60.0


@pytest.fixture(params=["file", "fakeredis", "redis-server"])
def lease(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: Callable[[Path], AbstractContextManager[int]]
) -> Iterator[Lease]:
    match request.param:
        case "file":
            yield FileLease(tmp_path / "new folder" / "lease")
        case "fakeredis":
            yield RedisLease(fakeredis.FakeRedis())
        case _:
            with redis_server(tmp_path) as port, Redis(port=port) as client:
                yield RedisLease(client)


def test_one_has_it_until_it_is_given_back(lease: Lease) -> None:
    assert lease.take("a", LONG_S)
    assert lease.take("a", LONG_S)  # renewed
    assert not lease.take("b", LONG_S)
    lease.give_back("b")
    assert not lease.take("b", LONG_S)
    lease.give_back("a")
    assert lease.take("b", LONG_S)
    assert not lease.take("a", LONG_S)


def test_one_that_is_not_renewed_is_free(lease: Lease) -> None:
    assert lease.take("a", 0.05)
    time.sleep(0.06)
    assert lease.take("b", LONG_S)
    assert not lease.take("a", LONG_S)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"holder": "x"}', '{"holder": "x", "until_s": 1e18}', "\0"])
def test_a_file_that_makes_no_sense_is_nobodys(tmp_path: Path, content: str) -> None:
    (tmp_path / "lease").write_text(content)
    assert FileLease(tmp_path / "lease").take("a", LONG_S)


def test_a_store_that_is_away_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="lease"):
        FileLease(tmp_path / "file" / "lease").take("a", LONG_S)
    server = fakeredis.FakeServer()
    server.connected = False
    with pytest.raises(Unavailable, match="lease in Redis"):
        RedisLease(fakeredis.FakeRedis(server=server)).take("a", LONG_S)


class Scripted:
    """Answers as it is told to; True from then on."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.given_back = False

    def take(self, holder: str, ttl_s: float) -> bool:
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def give_back(self, holder: str) -> None:
        self.given_back = True


async def led(lease: Lease, ttl_s: float, block: Callable[[], "asyncio.Future[None]"]) -> None:
    async with asyncio.timeout(30), leading(lease, ttl_s):
        await block()


async def test_a_leader_ends_once_another_leads() -> None:
    lease = Scripted(Unavailable("away"), False, True, True, Unavailable("away"), False)
    with pytest.raises(Unavailable, match="another scheduler has taken"):
        await led(lease, 0.2, asyncio.get_running_loop().create_future)
    assert lease.given_back


async def test_a_leader_ends_once_its_lease_is_over_by_its_own_clock() -> None:
    lease = Scripted(True, *[Unavailable("away")] * 1000)
    with pytest.raises(Unavailable, match="has ended"):
        await led(lease, 0.2, asyncio.get_running_loop().create_future)


async def test_a_leader_that_leaves_gives_the_lease_back() -> None:
    lease = Scripted()
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    await led(lease, LONG_S, lambda: done)
    assert lease.given_back


def test_which_lease_is_named(tmp_path: Path) -> None:
    with open_lease(SchedulerSettings()) as none:
        assert none is None
    with open_lease(SchedulerSettings(leadership=f"file:{tmp_path}/lease")) as file:
        assert isinstance(file, FileLease)
    with open_lease(SchedulerSettings(leadership="redis://127.0.0.1:1")) as redis:
        assert isinstance(redis, RedisLease)
        with pytest.raises(Unavailable, match="lease in Redis"):
            redis.take("a", LONG_S)
    with pytest.raises(ConfigError, match=r"scheduler\.leadership"):
        load_settings(overrides={"scheduler": {"leadership": "somewhere"}})


async def test_several_addresses_are_numeric_and_the_first_that_answers_is_used() -> None:
    known = load_settings(overrides={"gateway": {"scheduler": "127.0.0.1:1, 127.0.0.1:2"}})
    assert known.gateway.scheduler == "127.0.0.1:1,127.0.0.1:2"
    with pytest.raises(ConfigError, match=r"gateway\.scheduler.*numeric"):
        load_settings(overrides={"gateway": {"scheduler": "one:1,two:2"}})
    transport = TransportSettings()
    async with (
        serve("127.0.0.1:0", transport, lambda server: None, []) as handle,
        open_channel(f"127.0.0.1:1,{handle.address}", transport) as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        await check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=LONG_S)
