"""A stream's own rules: errors among the answers, bounds on what is answered at a time, and how it ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack

import grpc
import pytest

from headrace.api.inference import inference_pb2 as pb
from headrace.api.inference.inference_pb2_grpc import GRPCInferenceServiceStub
from headrace.core.errors import Draining, InvalidRequest, Overloaded
from headrace.gateway.kserve.streams import MAX_AT_ONCE, Streams

LONG_S = 600.0
WAIT_S = 60.0


async def numbered(count: int) -> AsyncIterator[pb.ModelInferRequest]:
    for number in range(count):
        yield pb.ModelInferRequest(id=str(number), model_name="m")


async def twice(request: pb.ModelInferRequest) -> AsyncGenerator[pb.ModelInferResponse, None]:
    yield pb.ModelInferResponse(id=request.id)
    if int(request.id) % 2:
        raise InvalidRequest(f"{request.id} is odd", field="id", limit="even")
    yield pb.ModelInferResponse(id=request.id)


async def test_an_error_is_the_last_of_its_requests_answers_and_of_no_others():
    written: list[pb.ModelStreamInferResponse] = []

    async def write(response: pb.ModelStreamInferResponse) -> None:
        written.append(response)

    await Streams(LONG_S).serve(numbered(4), twice, write, strict=False)
    answers = {
        id: [each.error_message for each in written if each.infer_response.id == id] for id in ("0", "1", "2", "3")
    }
    assert answers == {"0": ["", ""], "1": ["", "1 is odd"], "2": ["", ""], "3": ["", "3 is odd"]}


async def test_strictly_the_first_error_ends_the_stream():
    async def write(response: pb.ModelStreamInferResponse) -> None:
        pass

    with pytest.raises(ExceptionGroup) as ended:
        await Streams(LONG_S).serve(numbered(4), twice, write, strict=True)
    assert ended.group_contains(InvalidRequest)


async def test_no_more_are_read_than_are_answered_at_a_time():
    read: list[str] = []
    go_on, full = asyncio.Event(), asyncio.Event()

    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        async for request in numbered(3 * MAX_AT_ONCE):
            read.append(request.id)
            yield request

    async def answer(request: pb.ModelInferRequest) -> AsyncGenerator[pb.ModelInferResponse, None]:
        if int(request.id) == MAX_AT_ONCE - 1:
            full.set()
        await go_on.wait()
        yield pb.ModelInferResponse(id=request.id)

    written: list[str] = []

    async def write(response: pb.ModelStreamInferResponse) -> None:
        written.append(response.infer_response.id)

    serving = asyncio.create_task(Streams(LONG_S).serve(requests(), answer, write, strict=False))
    async with asyncio.timeout(WAIT_S):
        await full.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(read) == MAX_AT_ONCE + 1
        go_on.set()
        await serving
    assert sorted(written, key=int) == [str(number) for number in range(3 * MAX_AT_ONCE)]


async def test_a_peer_that_takes_nothing_is_cut_off():
    async def write(response: pb.ModelStreamInferResponse) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ExceptionGroup) as ended:
            await Streams(0.05).serve(numbered(1), twice, write, strict=False)
    assert ended.group_contains(Overloaded)


async def test_an_idle_stream_ends_when_the_gateway_leaves_and_what_was_taken_is_answered():
    streams, written, taken, go_on = Streams(LONG_S), [], asyncio.Event(), asyncio.Event()

    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        yield pb.ModelInferRequest(id="1")
        await asyncio.Event().wait()

    async def answer(request: pb.ModelInferRequest) -> AsyncGenerator[pb.ModelInferResponse, None]:
        taken.set()
        await go_on.wait()
        yield pb.ModelInferResponse(id=request.id)

    async def write(response: pb.ModelStreamInferResponse) -> None:
        written.append(response.infer_response.id)

    serving = asyncio.create_task(streams.serve(requests(), answer, write, strict=False))
    async with asyncio.timeout(WAIT_S):
        await taken.wait()
        streams.leave()
        go_on.set()
        with pytest.raises(Draining):
            await serving
    assert written == ["1"]


async def test_the_gateway_does_not_wait_for_an_idle_stream_when_it_leaves(door):
    """Its drain takes no longer than this test may, and would take ten minutes."""
    async with asyncio.timeout(WAIT_S), AsyncExitStack() as channels:
        async with door(transport={"drain_s": 600}) as there:
            channel = await channels.enter_async_context(grpc.aio.insecure_channel(there.address))
            call = GRPCInferenceServiceStub(channel).ModelStreamInfer()
            await call.write(pb.ModelInferRequest(model_name="nobody", id="x"))
            answer = await call.read()
            assert "nobody" in answer.error_message
        code = await call.code()
    assert code is grpc.StatusCode.UNAVAILABLE
