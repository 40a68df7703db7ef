"""Two gateways of one store: an answer whose gateway is gone is finished by the other, once, under its handle."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.chassis import signals
from headrace.client import AsyncClient, FinishReason, Piece
from headrace.client.codec import answers
from headrace.core.errors import EngineFault
from headrace.core.request import QosClass
from headrace.core.result_state import ResultState
from headrace.gateway.results.port import Bounds, Summary
from headrace.gateway.results.sqlite import SqliteStore

TEXT = "hello, whoever goes on with this"
SLA_MS = (60, 250, 1_000, 4_000, 16_000)


class Half:
    """Sends TEXT from where the request has come to: up to `upto` and no further, where that is set."""

    def __init__(self) -> None:
        self.upto: int | None = 7

    async def __call__(self, run: Any) -> None:
        for index in range(run.start.sampling.n):
            known = len(run.start.answer_token_ids[index]) // 4 if run.start.answer_token_ids else 0
            for byte in TEXT[known : self.upto].encode():
                run.send(bytes([byte]), index)
            if self.upto is None:
                run.send(b"\0", index, FinishReason.STOP)


async def pieces_of(stream: Any) -> list[Piece]:
    async with asyncio.timeout(60):
        return [piece async for piece in stream]


async def partial(client: AsyncClient, **options: Any) -> list[Piece]:
    """The pieces of an answer that had begun at its SLA."""
    for total_ms in SLA_MS:
        pieces = await pieces_of(client.stream("bytes", "hi", sla_total_ms=total_ms, **options))
        assert pieces[-1].finish_reason is FinishReason.PARTIAL
        if sum(len(piece.token_ids) for piece in pieces):
            return pieces
        await client.cancel_result(pieces[-1].result.handle)
    pytest.fail("nothing came in time")


async def stored(path: Path, handle: str) -> Summary:
    async with SqliteStore(path / "results.db", Bounds(100, 10**6)) as store:
        summary = await store.find(handle)
        assert summary is not None
        return summary


async def let_go(path: Path, handle: str) -> None:
    """As if its gateway had been stopped for longer than its lease."""
    async with SqliteStore(path / "results.db", Bounds(100, 10**6)) as store:
        await store._do(lambda db: db.execute("UPDATE results SET lost_s = 1 WHERE handle = ?", (handle,)))


async def finished(path: Path, handle: str) -> Summary:
    async with asyncio.timeout(60):
        while (there := await stored(path, handle)).state is ResultState.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return there


@pytest.mark.parametrize("n", [1, 2])
async def test_another_gateway_finishes_it(world: Callable[..., Any], beside: Any, tmp_path: Path, n: int) -> None:
    async with world() as w:
        w.executor.script = half = Half()
        async with beside(w) as client:
            began = await partial(client, n=n, temperature=1.0)
        first, result = w.executor.starts[-1], began[-1].result
        half.upto = None
        rest = await pieces_of(w.client.attach_result(result.handle, result.offset))
        for each in answers([*began, *rest]):
            assert (each.text, each.token_ids) == (TEXT, (*TEXT.encode(), 0))
        assert [piece.result.offset for piece in rest] == list(range(result.offset + 1, result.offset + 1 + len(rest)))
        assert rest[-1].usage.completion_tokens == n * (len(TEXT) + 1)
        again = w.executor.starts[-1]
        assert again.request_id != first.request_id
        assert again.sampling == first.sampling  # its seed too, which was drawn
        assert again.priority == QosClass.BATCH
        assert all(again.answer_token_ids)
        await w.idle()
        there = await finished(tmp_path, result.handle)
        assert (there.state, there.epoch, there.request_bytes) == (ResultState.FINISHED, 1, 0)
        span = await w.span()
        assert signals.TAKEOVER in [event.name for event in span.events]


async def test_who_was_too_long_away_is_refused_and_its_readers_go_on(
    world: Callable[..., Any], beside: Any, until: Any, tmp_path: Path
) -> None:
    async with world(results__lost_after_s=60) as w:
        w.executor.script = half = Half()
        began = await partial(w.client)
        result, first = began[-1].result, w.executor.starts[-1].request_id
        reading = asyncio.create_task(pieces_of(w.client.attach_result(result.handle, result.offset)))
        half.upto = None
        async with beside(w) as client:
            # the lease is let run out until the other has taken it: the first renews it all the time
            async with asyncio.timeout(60):
                while (await stored(tmp_path, result.handle)).epoch == 0:
                    await let_go(tmp_path, result.handle)
                    await asyncio.sleep(0)
            await until(lambda: first in w.executor.cancelled)
            at_other = answers(await pieces_of(client.attach_result(result.handle)))
            assert [each.text for each in at_other] == [TEXT]
            (whole,) = answers([*began, *await reading])
        assert (whole.text, whole.token_ids) == (TEXT, (*TEXT.encode(), 0))
        assert (await finished(tmp_path, result.handle)).epoch == 1


async def test_it_is_taken_so_often_and_then_lost(world: Callable[..., Any], beside: Any, tmp_path: Path) -> None:
    async with world(results__max_takeovers=0) as w:
        w.executor.script = Half()
        async with beside(w) as client:
            result = (await partial(client))[-1].result
        (seen,) = await w.client.list_results()
        assert seen.state is ResultState.LOST
        with pytest.raises(EngineFault, match="the gateway went away"):
            await pieces_of(w.client.attach_result(result.handle))
        assert (await stored(tmp_path, result.handle)).epoch == 0


async def test_a_gateway_without_room_leaves_it_to_others(
    world: Callable[..., Any], beside: Any, tmp_path: Path
) -> None:
    async with world() as w:
        w.executor.script = half = Half()
        async with beside(w) as client:
            result = (await partial(client, request_id="once"))[-1].result
            running = w.client.stream("bytes", "hi", request_id="once")
            await anext(running)  # this gateway has a request of that id
        assert not w.executor.starts[-1].answer_token_ids
        assert [each.state for each in await w.client.list_results()] == [ResultState.RUNNING]
        await running.aclose()
        half.upto = None
        (whole,) = answers(await pieces_of(w.client.attach_result(result.handle)))
        assert whole.text == TEXT


async def test_no_key_is_written(tmp_path: Path, world: Callable[..., Any]) -> None:
    async with world() as w, AsyncClient(w.gateway.address, retries=0, api_key="key-that-nobody-may-see") as client:
        w.executor.script = Half()
        await partial(client, request_id="kept")
        written = b"".join(file.read_bytes() for file in tmp_path.glob("results.db*"))  # noqa: ASYNC240
        assert b"kept" in written
        assert b"key-that-nobody-may-see" not in written
