"""Everything a caller can get wrong is refused, naming the field and its limit, and leaves nothing behind."""

import asyncio

import grpc
import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Sampling
from headrace.chassis import signals
from headrace.chassis.status import from_rpc_error
from headrace.client import AsyncClient
from headrace.core.errors import InvalidRequest, ModelNotFound, Overloaded

TOKENS = pb.TokenPrompt
CHAT = pb.ChatPrompt
TURN = pb.ChatMessage


def ask(**sampling):
    return pb.GenerateRequest(model="bytes", text="x", sampling=Sampling(**sampling))


BAD = [
    (pb.GenerateRequest(model="nobody", text="x"), ModelNotFound, "model", ""),
    (pb.GenerateRequest(text="x"), ModelNotFound, "model", ""),
    (pb.GenerateRequest(model="m" * 100_000, text="x"), ModelNotFound, "model", "128"),
    (pb.GenerateRequest(model="encoder", text="x"), InvalidRequest, "model", "decoder"),
    (pb.GenerateRequest(model="bytes"), InvalidRequest, "prompt", "text, tokens or chat"),
    (pb.GenerateRequest(model="bytes", text=""), InvalidRequest, "text", "1"),
    (pb.GenerateRequest(model="bytes", tokens=TOKENS()), InvalidRequest, "tokens.token_ids", "4"),
    (
        pb.GenerateRequest(model="bytes", tokens=TOKENS(token_ids=b"12345")),
        InvalidRequest,
        "tokens.token_ids",
        "4",
    ),
    (
        pb.GenerateRequest(model="bytes", tokens=TOKENS(token_ids=b"\0\1\0\0")),
        InvalidRequest,
        "tokens.token_ids",
        "0..255",
    ),
    (pb.GenerateRequest(model="bytes", chat=CHAT()), InvalidRequest, "chat.messages", "1"),
    (pb.GenerateRequest(model="bytes", chat=CHAT(messages=[TURN(role="user")])), InvalidRequest, "chat.messages", "1"),
    (
        pb.GenerateRequest(model="bytes", chat=CHAT(messages=[TURN(role="user", content="x"), TURN(role="king")])),
        InvalidRequest,
        "chat.messages[1].role",
        "user",
    ),
    (pb.GenerateRequest(model="small", text="x" * 16), InvalidRequest, "prompt", "15 tokens"),
    (
        pb.GenerateRequest(model="small", text="x" * 10, sampling=Sampling(max_tokens=7)),
        InvalidRequest,
        "sampling.max_tokens",
        "6",
    ),
    (
        ask(max_tokens=0),
        InvalidRequest,
        "sampling.max_tokens",
        "1",
    ),
    (
        ask(min_tokens=300),
        InvalidRequest,
        "sampling.min_tokens",
        "256",
    ),
    (
        ask(top_p=0.5),
        InvalidRequest,
        "sampling.temperature",
        "> 0",
    ),
    (
        ask(temperature=float("nan")),
        InvalidRequest,
        "sampling.temperature",
        "100",
    ),
    (ask(n=0), InvalidRequest, "sampling.n", "16"),
    (ask(stop=[""]), InvalidRequest, "sampling.stop", "256"),
    (
        ask(stop_token_ids=[256]),
        InvalidRequest,
        "sampling.stop_token_ids",
        "255",
    ),
    (pb.GenerateRequest(model="bytes", text="x", qos_class=9), InvalidRequest, "qos_class", "REALTIME"),
    (pb.GenerateRequest(model="bytes", text="x", precision=9), InvalidRequest, "precision", "INT8"),
    (pb.GenerateRequest(model="bytes", text="x", request_id="r" * 129), InvalidRequest, "request_id", "128"),
    (pb.GenerateRequest(model="bytes", text="x", request_id="a\nb"), InvalidRequest, "request_id", "printable"),
]


async def call(address, request, metadata=()):
    async with grpc.aio.insecure_channel(address) as channel:
        return [piece async for piece in GatewayServiceStub(channel).Generate(request, timeout=60, metadata=metadata)]


async def test_every_bad_request_names_field_and_limit(world):
    async with world() as w:
        for request, kind, field, limit in BAD:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(w.gateway.address, request)
            error = from_rpc_error(failed.value)
            said = (type(error), error.field, limit in error.limit)
            assert said == (kind, field, True), (request, error.message, error.limit)
        await w.idle()
        assert not w.scheduler.submissions
        assert {span.attributes[signals.ERROR_TYPE] for span in w.spans.get_finished_spans()} == {
            "INVALID_REQUEST",
            "MODEL_NOT_FOUND",
        }


async def test_what_does_not_fit_is_refused_with_the_numbers(world):
    async with world() as w:
        with pytest.raises(InvalidRequest, match=r"10 prompt tokens .* 7 exceed the context of 16"):
            await w.client.generate("small", "x" * 10, max_tokens=7)


async def test_bytes_that_are_no_utf8_are_the_callers_fault(world):
    async with world() as w, grpc.aio.insecure_channel(w.gateway.address) as channel:
        generate = channel.unary_stream("/headrace.gateway.v1.GatewayService/Generate")
        chat = b"\x0a\x05bytes\x22\x0c\x0a\x0a\x0a\x04user\x12\x02\xff\xfe"
        for data, field in ((b"\x0a\x05bytes\x12\x02\xff\xfe", "text"), (chat, "chat.messages.content")):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                [_ async for _ in generate(data)]
            error = from_rpc_error(failed.value)
            assert (failed.value.code(), error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_a_message_over_the_limit_is_refused_by_the_transport(world):
    async with world() as w, AsyncClient(w.gateway.address, retries=0, max_message_bytes=32 * 2**20) as client:
        with pytest.raises(Overloaded):
            await client.generate("bytes", "x" * (5 * 2**20))
        await w.idle()
        assert (await w.client.generate("bytes", "x")).text == "hello"


@pytest.mark.parametrize("tenant", ["", "a b", "x" * 65, "ä"])
async def test_a_tenant_is_a_plain_name(world, tenant):
    async with world() as w:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(w.gateway.address, pb.GenerateRequest(model="bytes", text="x"), [("x-headrace-tenant", tenant)])
        if tenant.isascii():  # the transport refuses the others
            assert from_rpc_error(failed.value).field == "x-headrace-tenant"
        await w.idle()


async def test_the_tenant_reaches_the_scheduler(world):
    async with world() as w, AsyncClient(w.gateway.address, tenant="team-1") as client:
        await client.generate("bytes", "x")
        assert w.scheduler.submissions[0].tenant == "team-1"


async def test_the_span_of_what_is_refused_says_which_request_it_was(world):
    async with world() as w:
        with pytest.raises(InvalidRequest):
            await w.client.generate("bytes", "x", temperature=-1, request_id="bad-1")
        span = await w.span()
        assert span.attributes[signals.REQUEST_ID] == "bad-1"
        assert span.attributes[signals.ERROR_TYPE] == "INVALID_REQUEST"


async def test_a_request_id_is_unique_among_the_active_ones(world, until):
    async with world() as w:
        w.scheduler.holding = True
        first = asyncio.create_task(w.client.generate("bytes", "x", request_id="same"))
        await until(lambda: len(w.scheduler.submissions) == 1)
        with pytest.raises(InvalidRequest) as failed:
            await w.client.generate("bytes", "x", request_id="same")
        assert failed.value.field == "request_id"
        w.scheduler.place(w.scheduler.submissions[0].request_id)
        assert (await first).text == "hello"
        w.scheduler.holding = False
        assert (await w.client.generate("bytes", "x", request_id="same")).request_id == "same"
        inside = [start.request_id for start in w.executor.starts]
        assert len(set(inside)) == 2  # late frames of the first cannot reach the second
