"""A reader that takes nothing is cut off and costs the others nothing."""

import asyncio
from contextlib import ExitStack

import grpc
import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Logprobs, TokenLogprob
from headrace.chassis import signals
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.core.errors import Overloaded
from headrace.gateway.reader import reading

GOOD = 16
TOKENS = 4000
UNREAD_S = 3
"""Long beside any stall of a busy machine: the good ones must not seem slow."""
LONG_LOGPROBS = [Logprobs(top=[TokenLogprob(token_id=number, logprob=-1) for number in range(2000)])]
"""Some 30 KB with each token: a few of them fill what gRPC holds for a reader that takes nothing."""


async def endless(member, send):
    """One big token every 5 ms until cancelled; a request of fewer tokens gets as many and ends."""
    for number in range(member.sampling.max_tokens):
        last = number == member.sampling.max_tokens - 1
        send(
            member,
            token_ids=b"\x68\0\0\0",
            logprobs=LONG_LOGPROBS,
            finish_reason="FINISH_REASON_LENGTH" if last else "FINISH_REASON_UNSPECIFIED",
        )
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("sla", [False, True])
async def test_it_is_cut_and_the_others_go_on(world, until, sla):
    async with (
        world({"longest_unread_s": UNREAD_S}) as w,
        open_channel(w.gateway.address, TransportSettings(max_message_bytes=64 * 2**20)) as channel,
    ):
        w.executor.script = endless
        request = pb.GenerateRequest(model="bytes", text="slow", request_id="slow")
        request.sampling.max_tokens = TOKENS
        if sla:
            request.sla.total_ms = 600_000
        slow = GatewayServiceStub(channel).Generate(request)
        responses = aiter(slow)
        assert (await anext(responses)).text == "h"
        [wire_id] = w.executor.started
        client = await w.client(max_message_bytes=64 * 2**20)
        good = [asyncio.create_task(client.generate("bytes", "x", max_tokens=20)) for _ in range(GOOD)]
        await until(lambda: w.executor.cancelled == [wire_id])
        assert [(await task).text for task in good] == ["h" * 20] * GOOD
        await w.idle()
        steps = w.executor.steps[wire_id]
        assert steps < TOKENS
        await client.generate("bytes", "x", max_tokens=20)
        assert w.executor.steps[wire_id] == steps, "it was made on for nobody"
        [span] = [span for span in w.spans.get_finished_spans() if span.attributes[signals.REQUEST_ID] == "slow"]
        assert span.attributes[signals.ERROR_TYPE] == "OVERLOADED"
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            [piece async for piece in responses]
        failed = from_rpc_error(ended.value)
        assert isinstance(failed, Overloaded)
        assert failed.limit == f"{UNREAD_S} s unread"


async def test_who_waits_for_a_slow_executor_is_no_such_reader():
    """Nothing was there for it to take."""
    with ExitStack() as held:
        closed = []
        held.callback(closed.append, True)
        with reading(held, 0.01) as reader:
            await asyncio.sleep(0.1)
            reader.took()
            assert not closed
