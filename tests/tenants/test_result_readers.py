"""Readers of results are callers like others: bounded in number, and cut off where they take nothing."""

from asyncio import Event, sleep, timeout

import grpc
import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Logprobs, TokenLogprob
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.client import FinishReason
from headrace.core.errors import Overloaded, TenantOverLimit

UNREAD_S = 3
BIG = [Logprobs(top=[TokenLogprob(token_id=number, logprob=-1) for number in range(2000)])]
"""Some 30 KB: enough of them are more than gRPC holds for a reader that takes nothing."""


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_RESULTS__STORE", str(tmp_path / "results.db"))
    monkeypatch.setenv("HEADRACE_RESULTS__PROGRESS_S", "0.02")


async def test_one_that_takes_nothing_is_cut_and_the_answer_goes_on(world):
    async with (
        world({"longest_unread_s": UNREAD_S}, default={"max_requests": 2}) as w,
        open_channel(w.gateway.address, TransportSettings(max_message_bytes=64 * 2**20)) as channel,
    ):
        cut, sent = Event(), 1

        async def goes_on(member, send):
            nonlocal sent
            send(member, token_ids=b"\x68\0\0\0")
            while not cut.is_set():
                await sleep(0.005)
                send(member, token_ids=b"\x68\0\0\0", logprobs=BIG)
                sent += 1
            send(member, token_ids=b"\x68\0\0\0", finish_reason="FINISH_REASON_STOP")

        w.executor.script = goes_on
        client = await w.client(max_message_bytes=64 * 2**20)
        answer = await client.generate("bytes", "hi", sla_total_ms=50, max_tokens=4000)
        assert answer.finish_reason is FinishReason.PARTIAL
        handle = answer.result.handle
        slow = aiter(GatewayServiceStub(channel).AttachResult(pb.AttachResultRequest(handle=handle)))
        assert (await anext(slow)).piece.text.startswith("h")
        w.executor.script = at_once
        with pytest.raises(TenantOverLimit, match="2 calls running"):
            await client.generate("bytes", "hi")  # the answer and its reader
        async with timeout(60):
            while True:  # until what the reader held is free
                try:
                    await client.generate("bytes", "hi")
                    break
                except TenantOverLimit:
                    await sleep(0.05)
        cut.set()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            [piece async for piece in slow]
        assert isinstance(from_rpc_error(ended.value), Overloaded)
        whole = [piece async for piece in client.attach_result(handle)]
        assert sum(len(piece.token_ids) for piece in whole) == sent + 1
        assert w.executor.cancelled == []


async def at_once(member, send):
    send(member, token_ids=b"\x68\0\0\0", finish_reason="FINISH_REASON_STOP")
