"""At the SLA: a partial answer and its rest, a refusal, or a note. Scripted executors on real sockets."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.chassis import signals
from headrace.chassis.status import from_rpc_error
from headrace.client import AsyncClient, FinishReason, Piece, ResultState
from headrace.client.codec import answers
from headrace.core.errors import Cancelled, DeadlineMissed, EngineFault, InvalidRequest, ResultNotFound
from headrace.core.request import QosClass
from headrace.gateway.results.port import Bounds
from headrace.gateway.results.sqlite import SqliteStore

SOON_MS = 60
LONGER_MS = (SOON_MS, 250, 1_000, 4_000, 16_000, 64_000)
"""For what has to happen before the SLA: on a busy machine it may take one of the longer."""


class Script:
    """Sends `first`, waits to be let on, sends `rest`."""

    def __init__(self, first: bytes = b"hel", rest: bytes = b"lo", n: int = 1) -> None:
        self.first, self.rest, self.n = first, rest, n
        self.go_on = asyncio.Event()

    async def __call__(self, run: Any) -> None:
        for index in range(self.n):
            for byte in self.first:
                run.send(bytes([byte]), index)
        await self.go_on.wait()
        for index in range(self.n):
            for byte in self.rest:
                run.send(bytes([byte]), index)
            run.send(b"\0", index, FinishReason.STOP, cached_prompt_tokens=1)


async def pieces_of(stream: Any) -> list[Piece]:
    return [piece async for piece in stream]


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


async def partial(w: Any, text: str, **options: Any) -> list[Piece]:
    """The pieces of an answer whose SLA passed when there was just this text."""
    for total_ms in LONGER_MS:
        pieces = await pieces_of(w.client.stream("bytes", "hi", sla_total_ms=total_ms, **options))
        assert pieces[-1].finish_reason is FinishReason.PARTIAL
        if text_of(pieces) == text:
            return pieces
        await w.client.cancel_result(pieces[-1].result.handle)
    pytest.fail("the text did not come in time")


async def settled(client: AsyncClient, state: ResultState) -> None:
    async with asyncio.timeout(20):
        while [each.state for each in await client.list_results()] != [state]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


async def test_the_text_so_far_then_the_rest(world: Callable[..., Any]) -> None:
    async with world() as w:
        w.executor.script = script = Script()
        last = (await partial(w, "hel", on_miss="partial"))[-1]
        assert (last.finish_reason, last.usage.completion_tokens) == (FinishReason.PARTIAL, 3)
        assert last.usage.prompt_tokens == 2
        assert last.result is not None
        script.go_on.set()
        rest = await pieces_of(w.client.attach_result(last.result.handle, last.result.offset))
        assert text_of(rest) == "lo"
        assert rest[-1].finish_reason is FinishReason.STOP
        assert rest[-1].usage.completion_tokens == 6
        (whole,) = answers(await pieces_of(w.client.attach_result(last.result.handle)))
        assert (whole.text, whole.token_ids) == ("hello", tuple(b"hello\0"))
        assert whole.request_id == last.request_id
        await w.idle()


async def test_any_offset_live_and_finished(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        w.executor.script = script = Script(b"abcdef", b"ghi")
        pieces = await partial(w, "abcdef")
        handle, there = pieces[-1].result.handle, pieces[-1].result.offset
        live = [asyncio.create_task(pieces_of(w.client.attach_result(handle, offset))) for offset in range(there + 1)]
        script.go_on.set()
        attached = [await task for task in live]
        whole = text_of(attached[0])
        assert whole == "abcdefghi"
        for pieces_live in attached:
            assert whole.endswith(text_of(pieces_live))

        await settled(w.client, ResultState.FINISHED)
        (result,) = await w.client.list_results()
        assert (result.handle, result.num_tokens) == (handle, 10)
        for offset in range(result.num_pieces + 1):
            stored = await pieces_of(w.client.attach_result(handle, offset))
            assert [each.result.offset for each in stored] == list(range(offset + 1, result.num_pieces + 1))
            assert text_of(stored) == text_of(attached[0][offset:])
        with pytest.raises(InvalidRequest, match=f"there are {result.num_pieces} pieces") as beyond:
            await pieces_of(w.client.attach_result(handle, result.num_pieces + 1))
        assert (beyond.value.field, beyond.value.limit) == ("offset", f"0..{result.num_pieces}")


async def test_it_goes_on_at_batch_priority(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        w.executor.script = script = Script()
        last = (await partial(w, "hel", qos="realtime"))[-1]
        await until(lambda: last.request_id in w.executor.demoted)
        (start,) = [each for each in w.executor.starts if each.request_id == last.request_id]
        assert start.priority == QosClass.REALTIME
        assert last.request_id not in w.executor.cancelled
        script.go_on.set()
        await w.idle()


async def test_one_that_still_waits_starts_at_batch_priority(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        w.scheduler.holding = True
        pieces = await pieces_of(w.client.stream("bytes", "hi", sla_total_ms=SOON_MS))
        assert text_of(pieces) == ""
        assert pieces[-1].finish_reason is FinishReason.PARTIAL
        await until(lambda: bool(w.scheduler.submissions))
        w.scheduler.place(w.scheduler.submissions[0].request_id)
        rest = await pieces_of(w.client.attach_result(pieces[-1].result.handle))
        assert text_of(rest) == "hello"
        assert w.executor.starts[0].priority == QosClass.BATCH


async def test_one_that_is_not_even_prepared(world: Callable[..., Any]) -> None:
    async with world() as w:
        w.preparer.gate = asyncio.Event()
        pieces = await pieces_of(w.client.stream("bytes", "hi", sla_total_ms=SOON_MS))
        assert (text_of(pieces), pieces[-1].usage.prompt_tokens) == ("", 0)
        w.preparer.gate.set()
        assert text_of(await pieces_of(w.client.attach_result(pieces[-1].result.handle))) == "hello"


async def test_every_unfinished_answer_ends_in_part(world: Callable[..., Any]) -> None:
    async with world() as w:
        w.executor.script = script = Script(n=3)
        parts = answers(await partial(w, "helhelhel", n=3))
        assert [each.text for each in parts] == ["hel"] * 3
        assert {each.finish_reason for each in parts} == {FinishReason.PARTIAL}
        script.go_on.set()
        whole = answers(await pieces_of(w.client.attach_result(parts[0].result.handle)))
        assert [each.text for each in whole] == ["hello"] * 3


async def test_an_answer_in_time_is_like_any_other(world: Callable[..., Any]) -> None:
    async with world() as w:
        pieces = await pieces_of(w.client.stream("bytes", "hi", sla_first_token_ms=30_000, sla_total_ms=60_000))
        assert (text_of(pieces), pieces[-1].finish_reason, pieces[-1].result) == ("hello", FinishReason.STOP, None)
        await w.idle()
        assert await w.client.list_results() == []
        assert signals.SLA_MISSED not in (await w.span()).attributes


@pytest.mark.parametrize(
    ("name", "first", "tokens"), [("first_token_ms", b"", 0), ("total_ms", b"hel", 3)], ids=["first token", "total"]
)
async def test_cancel_refuses_naming_the_sla(
    world: Callable[..., Any], until: Any, name: str, first: bytes, tokens: int
) -> None:
    async with world() as w:
        w.executor.script = Script(first)
        for ms in LONGER_MS:
            with pytest.raises(DeadlineMissed, match=rf"SLA {name} of {ms} ms passed after \d tokens") as missed:
                await w.client.generate("bytes", "hi", on_miss="cancel", **{f"sla_{name}": ms})
            assert (missed.value.field, missed.value.limit) == (f"sla.{name}", f"{ms} ms")
            await w.idle()
            if w.executor.starts and f"after {tokens} tokens" in str(missed.value):
                break
        await until(lambda: w.executor.starts[-1].request_id in w.executor.cancelled)
        span = await w.span()
        assert span.attributes[signals.SLA_MISSED] == name
        assert span.attributes[signals.SLA_OUTCOME] == "cancel"
        assert span.attributes[signals.ERROR_TYPE] == DeadlineMissed.reason


async def test_cancel_while_it_waits_in_the_queue(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        w.scheduler.holding = True
        for ms in LONGER_MS:
            with pytest.raises(DeadlineMissed, match="first_token_ms"):
                await w.client.generate("bytes", "hi", on_miss="cancel", sla_first_token_ms=ms)
            if w.scheduler.submissions:
                break
        await until(lambda: w.scheduler.submissions[0].request_id in w.scheduler.cancelled)
        await w.idle()


async def test_continue_only_notes_it(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        w.executor.script = script = Script(b"")
        asked = asyncio.create_task(w.client.generate("bytes", "hi", on_miss="continue", sla_first_token_ms=1))
        await until(lambda: bool(w.executor.starts))
        await asyncio.sleep(0.05)  # longer than the SLA, so that it has been missed
        script.go_on.set()
        assert (await asked).text == "lo"
        span = await w.span()
        assert span.attributes[signals.SLA_MISSED] == "first_token_ms"
        assert span.attributes[signals.SLA_OUTCOME] == "continue"


async def test_the_class_has_defaults_and_the_request_the_last_word(world: Callable[..., Any]) -> None:
    async with world(sla__realtime__total_ms=SOON_MS, sla__realtime__on_miss="cancel") as w:
        w.executor.script = script = Script()
        with pytest.raises(DeadlineMissed, match="total_ms"):
            await w.client.generate("bytes", "hi", qos="realtime")
        part = await w.client.generate("bytes", "hi", qos="realtime", on_miss="partial")
        assert part.finish_reason is FinishReason.PARTIAL
        script.go_on.set()
        assert (await w.client.generate("bytes", "hi", qos="realtime", sla_total_ms=0)).text == "hello"
        assert (await w.client.generate("bytes", "hi")).text == "hello"


async def test_a_caller_who_leaves_before_its_sla_leaves_nothing(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        w.executor.script = Script()
        stream = w.client.stream("bytes", "hi", sla_total_ms=60_000)
        await anext(stream)
        await stream.aclose()
        await until(lambda: w.executor.cancelled == [w.executor.starts[0].request_id])
        await w.idle()
        assert await w.client.list_results() == []


async def test_the_deadline_counts_where_it_comes_first(world: Callable[..., Any]) -> None:
    async with world() as w:
        w.executor.script = Script()
        with pytest.raises(DeadlineMissed):
            await w.client.generate("bytes", "hi", sla_total_ms=60_000, timeout_s=0.3)
        await w.idle()


async def test_the_deadline_does_not_end_what_goes_on(world: Callable[..., Any]) -> None:
    async with world() as w:
        w.executor.script = script = Script()
        part = await w.client.generate("bytes", "hi", sla_total_ms=SOON_MS, timeout_s=20.0)
        assert part.finish_reason is FinishReason.PARTIAL
        script.go_on.set()
        assert text_of(await pieces_of(w.client.attach_result(part.result.handle))) == "hello"
        assert w.executor.starts[0].deadline_ms > 60_000  # the background's, not the call's


async def test_cancelling_a_result_ends_it(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        w.executor.script = Script()
        part = await w.client.generate("bytes", "hi", sla_total_ms=SOON_MS)
        attached = w.client.attach_result(part.result.handle)
        await anext(attached)
        await w.client.cancel_result(part.result.handle)
        with pytest.raises(Cancelled, match="the result was cancelled"):
            await pieces_of(attached)
        await until(lambda: w.executor.cancelled == [w.executor.starts[0].request_id])
        await w.idle()
        assert await w.client.list_results() == []
        with pytest.raises(ResultNotFound):
            await w.client.cancel_result(part.result.handle)


async def test_a_result_that_fails_says_so_after_its_pieces(world: Callable[..., Any], until: Any) -> None:
    async with world() as w:
        script = Script()

        async def fails(run: Any) -> None:
            run.send(b"he")
            await script.go_on.wait()
            run.send(b"", 0, FinishReason.FAULT)

        w.executor.script = fails
        part = await w.client.generate("bytes", "hi", sla_total_ms=SOON_MS)
        script.go_on.set()
        await w.idle()
        await settled(w.client, ResultState.FAILED)
        attached = w.client.attach_result(part.result.handle)
        assert (await anext(attached)).text == "he"
        with pytest.raises(EngineFault, match="the executor failed the request"):
            await anext(attached)


async def test_another_tenants_results_do_not_exist(world: Callable[..., Any]) -> None:
    async with world() as w, AsyncClient(w.gateway.address, tenant="other") as other:
        w.executor.script = script = Script()
        part = await w.client.generate("bytes", "hi", sla_total_ms=SOON_MS)
        handle = part.result.handle
        for unknown in (handle, "no-such-handle", "", "x" * 100_000):
            with pytest.raises(ResultNotFound) as missing:
                await pieces_of(other.attach_result(unknown))
            assert missing.value.field == "handle"
            with pytest.raises(ResultNotFound):
                await other.cancel_result(unknown)
        assert await other.list_results() == []
        assert [each.state for each in await w.client.list_results()] == [ResultState.RUNNING]
        script.go_on.set()
        assert text_of(await pieces_of(w.client.attach_result(handle))) == "hello"
        with pytest.raises(ResultNotFound):
            await pieces_of(other.attach_result(handle))


async def test_without_room_the_answer_goes_on_in_its_call(world: Callable[..., Any], until: Any) -> None:
    async with world(results__max_results=1) as w:
        w.executor.script = script = Script()
        kept = await w.client.generate("bytes", "hi", sla_total_ms=SOON_MS)
        assert kept.finish_reason is FinishReason.PARTIAL
        asked = asyncio.create_task(w.client.generate("bytes", "hi", sla_total_ms=1))
        await until(lambda: len(w.executor.starts) == 2)
        await asyncio.sleep(0.1)  # longer than the SLA
        script.go_on.set()
        assert (await asked).text == "hello"
        await w.idle()


async def test_what_is_not_made_when_the_gateway_leaves_is_left_to_others_at_once(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    async with world() as w:
        w.executor.script = Script()
        last = (await partial(w, "hel"))[-1]
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 10_000)) as store:
        stored = await store.find(last.result.handle)
        assert stored is not None
        assert (stored.state, stored.num_tokens) == (ResultState.RUNNING, 3)
        assert stored.may_be_taken(time.time(), 1)


async def test_results_expire(world: Callable[..., Any]) -> None:
    async with world(results__ttl_s=0.05) as w:
        w.executor.script = script = Script()
        part = await w.client.generate("bytes", "hi", sla_total_ms=SOON_MS)
        script.go_on.set()
        await w.idle()
        async with asyncio.timeout(20):
            while await w.client.list_results():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
        with pytest.raises(ResultNotFound):
            await pieces_of(w.client.attach_result(part.result.handle))


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"first_token_ms": -1}, "sla.first_token_ms", "0..86400000"),
    ({"total_ms": -5}, "sla.total_ms", "0..86400000"),
    ({"total_ms": 2**62}, "sla.total_ms", "0..86400000"),
    ({"first_token_ms": 200, "total_ms": 100}, "sla.first_token_ms", "0..100"),
    ({"on_miss": pb.ON_MISS_CANCEL}, "sla.on_miss", "with first_token_ms or total_ms"),
    ({"total_ms": 0, "on_miss": pb.ON_MISS_PARTIAL}, "sla.on_miss", "with first_token_ms or total_ms"),
    ({"total_ms": 10, "on_miss": 9}, "sla.on_miss", "1 (PARTIAL), 2 (CANCEL), 3 (CONTINUE)"),
]


@pytest.mark.parametrize(("sla", "field", "limit"), BAD, ids=[f"{sla}" for sla, _, _ in BAD])
async def test_bad_slas_are_named(world: Callable[..., Any], sla: dict[str, Any], field: str, limit: str) -> None:
    async with world() as w, grpc.aio.insecure_channel(w.gateway.address) as channel:
        stub: Any = GatewayServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Generate(pb.GenerateRequest(model="bytes", text="hi", sla=pb.Sla(**sla))):
                pass
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = from_rpc_error(refused.value)
        assert (error.field, error.limit) == (field, limit)
        await w.idle()
