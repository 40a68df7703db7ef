"""The Python clients against a scripted gateway on a real socket."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1 import gateway_pb2_grpc
from headrace.api.types.v1.types_pb2 import Fault, Logprobs, TokenLogprob, Usage
from headrace.chassis.interceptors import StatusInterceptor
from headrace.chassis.status import from_fault
from headrace.client import AsyncClient, Client, FinishReason, Message, Precision
from headrace.core.errors import DeadlineMissed, EngineFault, InvalidRequest, QueueFull, Unavailable

HI = pb.GenerateResponse(
    request_id="r",
    text="hi",
    token_ids=b"\x07\0\0\0\x01\0\1\0",
    precision="PRECISION_BF16",
    logprobs=[Logprobs(chosen=TokenLogprob(token_id=7, logprob=-1), top=[TokenLogprob(token_id=8, logprob=-0.5)])] * 2,
)
OTHER = pb.GenerateResponse(request_id="r", index=1, text="yo", finish_reason="FINISH_REASON_LENGTH")
LAST = pb.GenerateResponse(
    request_id="r", text="!", finish_reason="FINISH_REASON_STOP", usage=Usage(prompt_tokens=3, completion_tokens=4)
)


class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers with `pieces`, then raises `fault` if there is one, or waits if `hanging`."""

    def __init__(self):
        self.pieces, self.fault, self.hanging = [HI, LAST], None, False
        self.requests, self.metadata, self.num_left = [], {}, 0

    async def Generate(self, request, context):
        self.requests.append(request)
        self.metadata = dict(context.invocation_metadata())
        try:
            for piece in self.pieces:
                yield piece
            if self.fault:
                raise from_fault(self.fault)
            if self.hanging:
                await asyncio.Event().wait()
        finally:
            self.num_left += 1

    async def ListModels(self, request, context):
        return pb.ListModelsResponse(models=[pb.Model(name="m", kind="decoder", context_tokens=9, ready=True)])


@asynccontextmanager
async def serving():
    gateway = FakeGateway()
    server = grpc.aio.server(interceptors=[StatusInterceptor()])
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(gateway, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield gateway, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextmanager
def thread():
    """Runs the blocking client beside the server's loop."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: asyncio.get_running_loop().run_in_executor(pool, call)


async def test_streams_pieces():
    async with serving() as (_, address), AsyncClient(address) as client:
        first, last = [piece async for piece in client.stream("m", "x")]
        assert (first.text, first.token_ids, first.precision) == ("hi", (7, 65537), Precision.BF16)
        assert (first.logprobs[0].chosen.token_id, first.logprobs[1].top[0].logprob) == (7, -0.5)
        assert (first.finish_reason, first.usage) == (FinishReason.NONE, None)
        assert (last.finish_reason, last.usage.completion_tokens) == (FinishReason.STOP, 4)


async def test_generates_one_answer_or_a_list_with_n():
    async with serving() as (gateway, address), AsyncClient(address) as client:
        answer = await client.generate("m", "x")
        assert (answer.text, answer.token_ids, answer.precision) == ("hi!", (7, 65537), Precision.BF16)
        assert (answer.finish_reason, answer.usage.prompt_tokens) == (FinishReason.STOP, 3)
        assert not gateway.requests[0].sampling.HasField("n")
        gateway.pieces = [HI, OTHER, LAST]
        first, second = await client.generate("m", "x", n=2)
        assert (first.text, second.text, second.finish_reason) == ("hi!", "yo", FinishReason.LENGTH)
        assert gateway.requests[1].sampling.n == 2


async def test_says_all_that_was_asked():
    async with serving() as (gateway, address), AsyncClient(address, tenant="t") as client:
        tracer = TracerProvider().get_tracer("test")
        with tracer.start_as_current_span("outer") as span:
            await client.generate(
                "m", [5, 6], max_tokens=3, temperature=0.0, seed=1, stop=["a", "b"], stop_token_ids=[4],
                ignore_eos=True, qos="batch", precision="int8", request_id="mine",
            )  # fmt: skip
        request = gateway.requests[0]
        assert (request.model, request.request_id, request.qos_class, request.precision) == ("m", "mine", 3, 4)
        assert request.tokens.token_ids == b"\5\0\0\0\6\0\0\0"
        sampling = request.sampling
        assert (sampling.max_tokens, sampling.seed, list(sampling.stop)) == (3, 1, ["a", "b"])
        assert (list(sampling.stop_token_ids), sampling.ignore_eos) == ([4], True)
        assert sampling.HasField("temperature")
        assert not sampling.HasField("top_p")
        assert gateway.metadata["x-headrace-tenant"] == "t"
        assert gateway.metadata["traceparent"].split("-")[2] == f"{span.get_span_context().span_id:016x}"


@pytest.mark.parametrize("turn", [Message("user", "yo"), {"role": "user", "content": "yo"}])
async def test_chats(turn):
    async with serving() as (gateway, address), AsyncClient(address) as client:
        await client.generate("m", [turn])
        [message] = gateway.requests[0].chat.messages
        assert (message.role, message.content) == ("user", "yo")


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ([-1], {}, "prompt"),
        (["x"], {}, "prompt"),
        ([{"role": "user"}], {}, "chat.messages"),
        ("x", {"top_k": -1}, "sampling.top_k"),
        ("x", {"max_tokens": "many"}, "sampling.max_tokens"),
        ("x", {"stop": [1]}, "sampling.stop"),
        ("x", {"beams": 4}, "sampling.beams"),
        ("x", {"qos": "vip"}, "qos"),
        ("x", {"precision": "fp7"}, "precision"),
    ],
)
async def test_what_the_wire_cannot_hold_is_refused_here(prompt, options, field):
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.generate("m", prompt, **options)
        assert refused.value.field == field


async def test_raises_the_errors_of_the_core():
    async with serving() as (gateway, address), AsyncClient(address) as client:
        gateway.fault = Fault(reason="QUEUE_FULL", message="full", retry_after_ms=250)
        stream = client.stream("m", "x")
        assert (await anext(stream)).text == "hi"
        assert (await anext(stream)).text == "!"
        with pytest.raises(QueueFull, match="full") as failed:
            await anext(stream)
        assert failed.value.retry_after_s == 0.25
        gateway.fault, gateway.pieces = None, [HI]
        with pytest.raises(EngineFault, match="before the answer"):
            await client.generate("m", "x")
    async with AsyncClient("127.0.0.1:1") as nobody:
        with pytest.raises(Unavailable):
            await nobody.models()


async def test_a_closed_stream_or_a_passed_deadline_ends_the_call():
    async with serving() as (gateway, address), AsyncClient(address) as client:
        gateway.hanging = True
        stream = client.stream("m", "x")
        await anext(stream)
        await stream.aclose()
        with pytest.raises(DeadlineMissed):
            await client.generate("m", "x", timeout_s=0.2)
        async with asyncio.timeout(20):
            while gateway.num_left < 2:  # noqa: ASYNC110 (the server's side)
                await asyncio.sleep(0.005)


async def test_lists_models():
    async with serving() as (_, address), AsyncClient(address) as client:
        [model] = await client.models()
        assert (model.name, model.kind, model.context_tokens, model.ready) == ("m", "decoder", 9, True)


async def test_the_blocking_client_does_the_same():
    async with serving() as (gateway, address):
        with thread() as run, Client(address, tenant="t") as client:
            answer = await run(lambda: client.generate("m", "x", max_tokens=2))
            assert (answer.text, gateway.requests[0].sampling.max_tokens) == ("hi!", 2)
            assert gateway.metadata["x-headrace-tenant"] == "t"
            assert [piece.text for piece in await run(lambda: list(client.stream("m", "x")))] == ["hi", "!"]
            gateway.pieces = [HI, OTHER, LAST]
            assert len(await run(lambda: client.generate("m", "x", n=2))) == 2
            assert [model.name for model in await run(client.models)] == ["m"]
            gateway.fault = Fault(reason="QUEUE_FULL", message="full", retry_after_ms=250)
            with pytest.raises(QueueFull):
                await run(lambda: client.generate("m", "x"))
