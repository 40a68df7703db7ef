"""Both stores keep the same promises: pieces in order, bounds, tenants, times."""

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from redis.asyncio import Redis

from headrace.core.errors import HeadraceError, Overloaded, Unavailable
from headrace.core.result_state import ResultState
from headrace.gateway.results.port import Bounds, ResultStore, Summary
from headrace.gateway.results.redis import RedisStore
from headrace.gateway.results.sqlite import SCHEMA, SqliteStore

Make = Callable[..., ResultStore]


def summary(handle: str, now_s: float = 0.0, tenant: str = "a", lost_s: float = 2e9, expires_s: float = 3e9) -> Summary:
    return Summary(handle, tenant, f"request {handle}", "bytes", now_s, lost_s, expires_s)


@pytest.fixture(params=["sqlite", "fakeredis", "redis-server"])
async def make(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: Callable[[Path], AbstractContextManager[int]]
) -> AsyncIterator[Make]:
    """`make(max_results=…, max_bytes=…)`: stores of the same content."""
    opened: list[Any] = []

    def bounds(max_results: int = 100, max_bytes: int = 10_000) -> Bounds:
        return Bounds(max_results, max_bytes)

    if request.param == "sqlite":

        def new(**given: int) -> Any:
            opened.append(SqliteStore(tmp_path / "folder" / "results.db", bounds(**given)))
            return opened[-1]

        yield new
        for store in opened:
            await store.__aexit__()
        return
    if request.param == "fakeredis":
        server = fakeredis.FakeServer()
        yield lambda **given: RedisStore(fakeredis.FakeAsyncRedis(server=server), bounds(**given))
        return
    with redis_server(tmp_path) as port:
        client = Redis(port=port)
        yield lambda **given: RedisStore(client, bounds(**given))
        await client.aclose()


async def test_of_many_calls_at_once_one_that_fails_changes_nothing_and_spoils_no_other(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "results.db", Bounds(3, 10_000)) as store:
        for handle in ("first", "second"):
            await store.open(summary(handle))
        outcomes = await asyncio.gather(
            store.append("first", 0, 0, [b"0", b"1"], 2, 2e9, 3e9),
            store.open(summary("third"), b"", [b"a"]),
            store.open(summary("fourth"), b"", [b"b"]),
            store.append("second", 0, 0, [b"2"], 1, 2e9, 3e9),
            store.append("gone", 0, 0, [b"3"], 1, 2e9, 3e9),
            store.open(summary("second"), b"", [b"c"]),
            return_exceptions=True,
        )
        assert outcomes[:2] == [True, None]
        assert isinstance(outcomes[2], Overloaded)
        assert outcomes[3:5] == [True, False]
        assert isinstance(outcomes[5], HeadraceError)
        pieces = {handle: await store.read(handle, 0, 9) for handle in ("first", "second", "third", "fourth")}
        assert pieces == {"first": [b"0", b"1"], "second": [b"2"], "third": [b"a"], "fourth": []}
        assert await store.find("fourth") is None


async def test_pieces_come_back_in_order_from_any_number_on(make: Make) -> None:
    store = make()
    await store.open(summary("h"))
    assert await store.append("h", 0, 0, [b"0", b"1"], 2, 2e9, 3e9)
    assert await store.append("h", 0, 2, [b"", b"3\x00"], 5, 2e9, 3e9)
    assert await store.append(
        "h", 0, 2, [b"", b"3\x00", b"4"], 6, 2.5e9, 3.5e9
    )  # what is there already is not there twice
    for first in range(6):
        assert await store.read("h", first, 100) == [b"0", b"1", b"", b"3\x00", b"4"][first:]
    assert await store.read("h", 1, 2) == [b"1", b""]
    assert await store.close("h", 0, ResultState.FAILED, "ENGINE_FAULT", "broke — ü", 4e9)
    found = await store.find("h")
    assert found == Summary(
        "h", "a", "request h", "bytes", 0.0, 2.5e9, 4e9, ResultState.FAILED, 5, 6, 5, "ENGINE_FAULT", "broke — ü"
    )
    assert await make().find("h") == found


async def test_what_is_gone_takes_nothing_more(make: Make) -> None:
    store = make()
    await store.open(summary("h"))
    await store.append("h", 0, 0, [b"0"], 1, 2e9, 3e9)
    await store.drop("h")
    assert not await store.append("h", 0, 1, [b"1"], 2, 2e9, 3e9)
    assert not await store.close("h", 0, ResultState.FINISHED, "", "", 3e9)
    assert await store.find("h") is None
    assert await store.read("h", 0, 10) == []
    assert await store.list("a") == []
    await store.drop("h")


async def test_a_tenant_sees_its_own_newest_first(make: Make) -> None:
    store = make()
    for number, tenant in enumerate("abab"):
        await store.open(summary(f"h{number}", float(number), tenant))
    assert [each.handle for each in await store.list("a")] == ["h2", "h0"]
    assert [each.handle for each in await store.list("b")] == ["h3", "h1"]
    assert await store.list("c") == []


async def test_the_oldest_that_has_ended_makes_room_and_never_one_that_runs(make: Make) -> None:
    store = make(max_results=3)
    for number in range(3):
        await store.open(summary(f"h{number}", float(number)))
    with pytest.raises(Overloaded, match="3 results are being made"):
        await store.open(summary("more"))
    await store.close("h2", 0, ResultState.FINISHED, "", "", 100.0)
    await store.close("h1", 0, ResultState.FINISHED, "", "", 200.0)
    await store.open(summary("h3"))
    assert sorted(each.handle for each in await store.list("a")) == ["h0", "h1", "h3"]
    await store.open(summary("h4"))
    assert sorted(each.handle for each in await store.list("a")) == ["h0", "h3", "h4"]
    with pytest.raises(Overloaded):
        await store.open(summary("more"))


async def test_bytes_are_bounded_too(make: Make) -> None:
    store = make(max_bytes=10)
    for handle in ("old", "new", "runs"):
        await store.open(summary(handle))
    await store.append("old", 0, 0, [b"1234"], 1, 2e9, 3e9)
    await store.append("new", 0, 0, [b"1234"], 1, 2e9, 3e9)
    await store.close("old", 0, ResultState.FINISHED, "", "", 2e9)
    await store.close("new", 0, ResultState.FINISHED, "", "", 2.1e9)
    assert await store.append("runs", 0, 0, [b"123"], 1, 2e9, 3e9)  # 11 bytes: the oldest goes
    assert sorted(each.handle for each in await store.list("a")) == ["new", "runs"]
    assert await store.append("runs", 0, 1, [b"x" * 20], 2, 2e9, 3e9)  # over the bound by itself: it runs, so it stays
    assert [each.handle for each in await store.list("a")] == ["runs"]
    assert await store.append("runs", 0, 2, [b"y"], 3, 2e9, 3e9)
    assert len(await store.read("runs", 0, 10)) == 3


async def test_the_expired_go_and_the_lost_count_as_ended(make: Make) -> None:
    store = make(max_results=2)
    await store.open(summary("ended"))
    await store.close("ended", 0, ResultState.FINISHED, "", "", 50.0)
    await store.open(summary("lost", lost_s=60.0, expires_s=160.0))
    assert (await store.find("lost")).at(59.0, 3).state is ResultState.RUNNING  # type: ignore[union-attr]
    assert (await store.find("lost")).at(60.0, 3).state is ResultState.LOST  # type: ignore[union-attr]
    await store.open(summary("first", now_s=50.0))
    assert sorted(each.handle for each in await store.list("a")) == ["first", "lost"]
    await store.open(summary("second", now_s=61.0))
    assert sorted(each.handle for each in await store.list("a")) == ["first", "second"]
    await store.drop("second")
    await store.open(summary("third", now_s=62.0, lost_s=70.0, expires_s=80.0))
    await store.drop("first")
    await store.open(summary("fourth", now_s=80.0))
    assert [each.handle for each in await store.list("a")] == ["fourth"]


def lost(handle: str, lost_s: float = 60.0, **more: Any) -> Summary:
    return Summary(handle, "a", "r", "bytes", 0.0, lost_s, 2e9, due_s=1e9, **more)


async def test_what_was_asked_is_there_for_who_takes_it_over(make: Make) -> None:
    store = make()
    asked = lost("h", num_pieces=2, num_tokens=2, num_bytes=9, request_bytes=7, trace="00-1-2-01")
    await store.open(asked, b"request", [b"0", b"1"])
    assert await store.find("h") == asked
    assert await store.read("h", 0, 10) == [b"0", b"1"]
    assert await store.lost(59.0, 10) == []
    assert await store.lost(60.0, 10) == [asked]
    assert await store.take("h", 0, 59.0, 90.0, 2e9) is None  # its gateway still has it
    assert await store.take("h", 1, 60.0, 90.0, 2e9) is None  # of an epoch that has not come
    assert await store.take("h", 0, 60.0, 90.0, 2.1e9) == b"request"
    assert await store.lost(89.0, 10) == []
    assert await store.take("h", 0, 60.0, 90.0, 2e9) is None
    found = await store.find("h")
    assert found is not None
    assert (found.epoch, found.lost_s, found.expires_s, found.num_pieces) == (1, 90.0, 2.1e9, 2)


async def test_who_was_there_before_writes_nothing_more(make: Make) -> None:
    store = make()
    await store.open(lost("h", num_bytes=7, request_bytes=7), b"request")
    assert await store.append("h", 0, 0, [b"0"], 1, 60.0, 2e9)
    assert await store.take("h", 0, 60.0, 90.0, 2e9) == b"request"
    assert not await store.append("h", 0, 1, [b"from before"], 2, 2e9, 3e9)
    assert not await store.close("h", 0, ResultState.FINISHED, "", "", 3e9)
    assert await store.append("h", 1, 1, [b"1"], 2, 2e9, 3e9)
    assert await store.close("h", 1, ResultState.FINISHED, "", "", 3e9)
    assert await store.read("h", 0, 10) == [b"0", b"1"]
    assert await store.take("h", 1, 2.5e9, 2.6e9, 3e9) is None  # it has ended
    found = await store.find("h")
    assert found is not None
    assert (found.state, found.num_bytes, found.request_bytes) == (ResultState.FINISHED, 2, 0)


async def test_of_all_who_try_one_takes_it(make: Make) -> None:
    stores = [make() for _ in range(4)]
    for number in range(8):
        await stores[0].open(lost(f"h{number}", num_bytes=1, request_bytes=1), b"r")
    for number in range(8):
        tries = [store.take(f"h{number}", 0, 60.0, 90.0, 2e9) for store in stores * 2]
        assert [each for each in await asyncio.gather(*tries) if each is not None] == [b"r"]


async def test_the_oldest_lost_come_first_and_not_too_many(make: Make) -> None:
    store = make()
    for number in (3, 1, 2):
        await store.open(lost(f"h{number}", float(number)))
    await store.open(lost("ended", 0.5))
    await store.close("ended", 0, ResultState.FINISHED, "", "", 2e9)
    assert [each.handle for each in await store.lost(10.0, 2)] == ["h1", "h2"]


async def test_the_request_counts_while_it_is_there(make: Make) -> None:
    store = make(max_bytes=10)
    await store.open(summary("old"))
    await store.append("old", 0, 0, [b"1234"], 1, 2e9, 3e9)
    await store.close("old", 0, ResultState.FINISHED, "", "", 2e9)
    await store.open(Summary("h", "a", "r", "m", 0.0, 2e9, 3e9, num_bytes=6, request_bytes=6), b"asked!")
    assert await store.append("h", 0, 0, [b"x"], 1, 2e9, 3e9)  # 11 bytes: the oldest goes
    assert [each.handle for each in await store.list("a")] == ["h"]
    await store.close("h", 0, ResultState.FINISHED, "", "", 2e9)
    await store.open(summary("more"))
    assert await store.append("more", 0, 0, [b"x" * 9], 1, 2e9, 3e9)  # 10 bytes
    assert sorted(each.handle for each in await store.list("a")) == ["h", "more"]


async def test_a_file_of_the_first_version_is_gone_on_with(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "results.db") as db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO results VALUES ('h', 'a', 'r', 'm', 0, 60, 2e9, 1, 1, 1, 1, '', '')")
        db.execute("INSERT INTO pieces VALUES ('h', 0, '0')")
        db.execute("PRAGMA user_version = 1")
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 100)) as store:
        (there,) = await store.list("a")
        assert (there.state, there.at(61.0, 3).state) == (
            ResultState.RUNNING,
            ResultState.LOST,
        )  # nothing to go on with
        assert await store.append("h", 0, 1, [b"1"], 2, 2e9, 3e9)
        await store.open(lost("new", request_bytes=1, num_bytes=1), b"r")
        assert await store.take("new", 0, 60.0, 90.0, 2e9) == b"r"
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 100)) as store:
        assert len(await store.list("a")) == 2


async def test_looking_makes_no_file(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 100)) as store:
        assert await store.lost(1.0, 10) == []
    assert not (tmp_path / "results.db").exists()


def test_it_is_lost_only_if_nobody_goes_on_with_it() -> None:
    there = lost("h", request_bytes=1)
    for now_s, most, seen in [
        (59.0, 0, ResultState.RUNNING),
        (60.0, 3, ResultState.RUNNING),
        (60.0, 0, ResultState.LOST),
        (1e9, 3, ResultState.LOST),
    ]:
        assert there.at(now_s, most).state is seen
    assert replace(there, epoch=3).at(60.0, 3).state is ResultState.LOST
    assert replace(there, request_bytes=0).at(60.0, 3).state is ResultState.LOST


async def test_two_gateways_write_at_once(make: Make) -> None:
    stores = [make(), make()]

    async def one(store: ResultStore, handle: str) -> None:
        await store.open(summary(handle))
        for number in range(20):
            assert await store.append(handle, 0, number, [bytes([number])], number, 2e9, 3e9)
        assert await store.close(handle, 0, ResultState.FINISHED, "", "", 3e9)

    async with asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(one(stores[number % 2], f"h{number}"))
    for number in range(6):
        assert await stores[(number + 1) % 2].read(f"h{number}", 0, 100) == [bytes([each]) for each in range(20)]


async def test_a_file_that_is_no_store_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "results.db").write_bytes(b"no database " * 100)
    async with SqliteStore(tmp_path / "results.db", Bounds(1, 1)) as store:
        with pytest.raises(Unavailable, match=r"results\.db"):
            await store.list("a")


async def test_a_redis_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # nobody listens on it
        async with RedisStore.at(f"redis://127.0.0.1:{probe.getsockname()[1]}", Bounds(1, 1)) as store:
            with pytest.raises(Unavailable, match="result store"):
                await store.find("h")


async def test_stores_of_other_names_share_nothing_in_one_redis() -> None:
    server, bounds = fakeredis.FakeServer(), Bounds(1, 10_000)
    one, other = (RedisStore(fakeredis.FakeAsyncRedis(server=server), bounds, prefix) for prefix in ("one", "other"))
    await one.open(summary("h"), b"", [b"0"])
    assert await other.find("h") is None
    await other.open(summary("h"), b"", [b"1"])  # the bound is of each
    assert await other.close("h", 0, ResultState.FINISHED, "", "", 4e9)
    await other.drop("h")
    assert await one.read("h", 0, 9) == [b"0"]
    assert [each.handle for each in await one.list("a")] == ["h"]
