"""All four kinds of call answer with the right status, whatever their handler raises and whatever bytes come."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from headrace.api.gateway.v1.gateway_pb2 import ChatMessage, ChatPrompt, GenerateRequest
from headrace.chassis.status import from_rpc_error
from headrace.core.errors import EngineFault, HeadraceError, InvalidRequest, QueueFull

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
SECRET = "password of the database"


def handler(kind: str, work: Callable[[GenerateRequest], Any]) -> "grpc.RpcMethodHandler[Any, Any]":
    """A handler of this kind that answers each request with work(request)."""

    async def one(request: GenerateRequest, context: object) -> ChatMessage:
        return ChatMessage(content=str(work(request)))

    async def one_to_many(request: GenerateRequest, context: object) -> AsyncIterator[ChatMessage]:
        for _ in range(2):
            yield ChatMessage(content=str(work(request)))

    async def many_to_one(requests: AsyncIterator[GenerateRequest], context: object) -> ChatMessage:
        return ChatMessage(content=",".join([str(work(request)) async for request in requests]))

    async def many(requests: AsyncIterator[GenerateRequest], context: object) -> AsyncIterator[ChatMessage]:
        async for request in requests:
            yield ChatMessage(content=str(work(request)))

    behaviours = dict(zip(KINDS, (one, one_to_many, many_to_one, many), strict=True))
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    made: grpc.RpcMethodHandler[Any, Any] = make(
        behaviours[kind], GenerateRequest.FromString, ChatMessage.SerializeToString
    )
    return made


async def answers(channel: grpc.aio.Channel, kind: str, payloads: list[bytes]) -> list[str]:
    """The contents that a call of this kind brings. Raises the error that it stands for."""
    method = getattr(channel, kind)("/test.v1.TestService/Call", response_deserializer=ChatMessage.FromString)
    call = method(iter(payloads) if kind.startswith("stream") else payloads[0])
    try:
        if kind.endswith("stream"):
            return [response.content async for response in call]
        return [(await call).content]
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def payload(model: str) -> bytes:
    return GenerateRequest(model=model).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("unary_unary", ["a"]), ("unary_stream", ["a", "a"]), ("stream_unary", ["a,b"]), ("stream_stream", ["a", "b"])],
)
async def test_good_calls_pass(serving: Any, kind: str, expected: list[str]) -> None:
    async with serving({"Call": handler(kind, lambda request: request.model)}) as channel:
        assert await answers(channel, kind, [payload("a"), payload("b")]) == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_ours_is_its_status(serving: Any, kind: str) -> None:
    def work(request: GenerateRequest) -> str:
        raise QueueFull("full", retry_after_s=2)

    async with serving({"Call": handler(kind, work)}) as channel:
        with pytest.raises(QueueFull, match="full") as caught:
            await answers(channel, kind, [payload("a")])
    assert caught.value.retry_after_s == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_a_task_group_is_its_first(serving: Any, kind: str) -> None:
    def work(request: GenerateRequest) -> str:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [QueueFull("full")])])

    async with serving({"Call": handler(kind, work)}) as channel:
        with pytest.raises(QueueFull, match="full"):
            await answers(channel, kind, [payload("a")])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ValueError(SECRET), ExceptionGroup(SECRET, [ValueError(SECRET), QueueFull("full")])])
async def test_an_unknown_error_is_an_incident_and_leaks_nothing(
    serving: Any, kind: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def work(request: GenerateRequest) -> str:
        raise error

    async with serving({"Call": handler(kind, work)}) as channel:
        with caplog.at_level(logging.ERROR), pytest.raises(EngineFault, match="incident") as caught:
            await answers(channel, kind, [payload("a")])
    cause = caught.value.__cause__
    assert isinstance(cause, grpc.aio.AioRpcError)
    assert cause.code() is grpc.StatusCode.INTERNAL
    assert SECRET not in f"{cause.details()} {cause.debug_error_string()} {cause.trailing_metadata()}"
    incident = caught.value.message.split()[-1]
    (record,) = (record for record in caplog.records if incident in record.getMessage())
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("data", "field", "limit"),
    [
        (b"\x0a\x01\xff", "model", "UTF-8"),
        (b"\x12\x02\xc3\x28", "text", "UTF-8"),
        (b"\x22\x05\x0a\x03\x12\x01\xff", "chat.messages.content", "UTF-8"),
        (b"\x2a\x03\x5a\x01\xff", "sampling.stop", "UTF-8"),
        (b"\x0a\xff", "message", "protobuf wire format"),
        (b"\xff\xff\xff", "message", "protobuf wire format"),
    ],
)
async def test_bytes_that_do_not_decode_are_the_callers_fault(
    serving: Any, kind: str, data: bytes, field: str, limit: str
) -> None:
    async with serving({"Call": handler(kind, lambda request: request.model)}) as channel:
        with pytest.raises(InvalidRequest) as caught:
            await answers(channel, kind, [data])
    assert (caught.value.field, caught.value.limit) == (field, limit)


async def test_a_bad_field_is_found_behind_good_ones(serving: Any) -> None:
    good = GenerateRequest(chat=ChatPrompt(messages=[ChatMessage(role="user", content="hi")])).SerializeToString()
    async with serving({"Call": handler("unary_unary", lambda request: request.model)}) as channel:
        with pytest.raises(InvalidRequest) as caught:
            await answers(channel, "unary_unary", [payload("a") + good + b"\x42\x01\xff"])
    assert caught.value.field == "request_id"


async def test_answers_before_an_error_still_arrive(serving: Any) -> None:
    def work(request: GenerateRequest) -> str:
        if request.model == "bad":
            raise InvalidRequest("no", field="model")
        return request.model

    async with serving({"Call": handler("stream_stream", work)}) as channel:
        call = channel.stream_stream("/test.v1.TestService/Call")(iter([payload("a"), payload("bad"), payload("b")]))
        first = await call.read()
        assert ChatMessage.FromString(first).content == "a"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    error: HeadraceError = from_rpc_error(caught.value)
    assert (type(error), error.field) == (InvalidRequest, "model")


async def test_a_caller_that_leaves_closes_the_handler(serving: Any) -> None:
    closed = asyncio.Event()

    async def endless(request: GenerateRequest, context: object) -> AsyncIterator[ChatMessage]:
        try:
            while True:
                yield ChatMessage(content="again")
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    make = grpc.unary_stream_rpc_method_handler(endless, GenerateRequest.FromString, ChatMessage.SerializeToString)
    async with serving({"Call": make}) as channel:
        call = channel.unary_stream("/test.v1.TestService/Call")(payload("a"))
        await call.read()
        call.cancel()
        async with asyncio.timeout(20):
            await closed.wait()


@pytest.mark.parametrize("beside", [None, [], [InvalidRequest("no")]])
async def test_a_write_to_a_caller_that_has_left_is_no_incident(
    serving: Any, caplog: pytest.LogCaptureFixture, beside: list[Exception] | None
) -> None:
    """By itself, or in a task group `beside` other failures."""
    left, failures = asyncio.Event(), []

    async def write(context: Any) -> None:
        try:
            await context.write(ChatMessage(content="late"))
        except Exception as failure:
            failures.append(failure)
            raise

    async def late(requests: Any, context: Any) -> None:
        try:
            await left.wait()
        except asyncio.CancelledError:  # so that the write is sure to come too late
            try:
                await write(context)
            except Exception as failure:
                if beside is None:
                    raise
                raise ExceptionGroup("tasks", [*beside, failure]) from None

    make = grpc.stream_stream_rpc_method_handler(late, GenerateRequest.FromString, ChatMessage.SerializeToString)
    with caplog.at_level(logging.ERROR):
        async with serving({"Call": make}) as channel:
            call = channel.stream_stream("/test.v1.TestService/Call")(iter([payload("a")]))
            await call.initial_metadata()
            call.cancel()
    assert failures
    assert not caplog.records


async def test_an_unknown_method_is_unimplemented(serving: Any) -> None:
    async with serving({}) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.v1.TestService/Nothing")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
