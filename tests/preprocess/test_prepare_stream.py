"""The preprocess service and the preparer over it, on real sockets."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.api.preprocess.v1 import preprocess_pb2 as pb
from headrace.api.preprocess.v1 import preprocess_pb2_grpc
from headrace.chassis import signals
from headrace.chassis.channel import open_channel
from headrace.chassis.config import Settings, load_settings
from headrace.chassis.server import ServerHandle, serve
from headrace.core.errors import InvalidRequest, ModelNotFound, Unavailable
from headrace.gateway.ports import Message, Preparer
from headrace.models import reference
from headrace.preprocess import app, servicer
from headrace.preprocess.inline import InlinePreparer
from headrace.preprocess.pipeline import Pipeline, Prompt
from headrace.preprocess.remote import RemotePreparer, open_preparer, to_item
from headrace.preprocess.servicer import PreprocessServicer

BOUND_S = 30
ROOT = Context()


@pytest.fixture
def suite(home: Path) -> Settings:
    overrides: dict[str, dict[str, Any]] = {
        "models": {"home": home},
        "preprocess": {"listen": "127.0.0.1:0"},
        "transport": {"max_message_bytes": 64 * 1024, "drain_s": BOUND_S},
    }
    return load_settings(None, overrides)


@pytest.fixture
async def service(suite: Settings, tracer_provider: TracerProvider) -> AsyncIterator[ServerHandle]:
    async with app.start(suite, tracer_provider.get_tracer("preprocess")) as handle:
        yield handle


@pytest.fixture
async def preparer(suite: Settings, service: ServerHandle) -> AsyncIterator[RemotePreparer]:
    async with open_preparer(service.address, suite.transport) as preparer:
        yield preparer


async def test_prepares_texts_and_chats(preparer: RemotePreparer) -> None:
    port: Preparer = preparer
    text = await port.prepare("a", reference.NAME, "wässer", ROOT)
    chat = await port.prepare("b", reference.NAME, [Message("user", "hi")], ROOT)
    assert bytes(text.tolist()) == "wässer".encode()
    assert bytes(chat.tolist()) == b"user: hi\nassistant: "
    assert text.dtype == np.uint32


async def test_many_at_once_each_get_their_own(preparer: RemotePreparer) -> None:
    prompts = {f"r{number}": f"{number} " * (1 + number % 700) for number in range(servicer.MAX_ITEMS_IN_FLIGHT * 2)}
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        answers = {
            key: tasks.create_task(preparer.prepare(key, reference.NAME, text, ROOT)) for key, text in prompts.items()
        }
    assert {key: bytes(task.result().tolist()).decode() for key, task in answers.items()} == prompts


@pytest.mark.parametrize(
    ("model", "prompt", "kind", "field"),
    [
        ("nobody", "hi", ModelNotFound, "model"),
        (reference.NAME, "", InvalidRequest, "prompt.text"),
        (reference.NAME, "x" * (reference.CONTEXT_TOKENS + 1), InvalidRequest, "prompt.text"),
        (reference.NAME, "x" * 70_000, InvalidRequest, "prompt.text"),  # more than a message holds
        (reference.NAME, [], InvalidRequest, "chat.messages"),
        (reference.NAME, [Message("robot", "hi")], InvalidRequest, "chat.messages[0].role"),
    ],
)
async def test_one_fault_is_not_anothers(
    preparer: RemotePreparer, model: str, prompt: Prompt, kind: type[Exception], field: str
) -> None:
    good = asyncio.create_task(preparer.prepare("good", reference.NAME, "hi", ROOT))
    with pytest.raises(kind) as caught:
        await preparer.prepare("bad", model, prompt, ROOT)
    assert getattr(caught.value, "field", None) == field
    assert len(await good) == 2


async def test_an_unexpected_fault_tells_an_incident_and_nothing_else(
    preparer: RemotePreparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "prepare", broken)
        with pytest.raises(Exception, match="incident") as caught:
            await preparer.prepare("bad", reference.NAME, "hi", ROOT)
    assert "secret" not in str(caught.value)
    assert len(await preparer.prepare("good", reference.NAME, "hi", ROOT)) == 2


async def test_the_span_is_the_services_under_the_callers(
    preparer: RemotePreparer, tracer_provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    with tracer_provider.get_tracer("gateway").start_as_current_span("gateway.generate", ROOT) as parent:
        await preparer.prepare("r1", reference.NAME, "hello", trace.set_span_in_context(parent, ROOT))
    prepared = next(span for span in spans.get_finished_spans() if span.name == signals.PREPROCESS_PREPARE)
    assert prepared.parent is not None
    assert prepared.parent.span_id == parent.get_span_context().span_id
    assert prepared.context.trace_id == parent.get_span_context().trace_id
    assert prepared.attributes is not None
    assert prepared.attributes[signals.PROMPT_TOKENS] == 5


async def test_a_second_request_of_the_same_id_is_refused(preparer: RemotePreparer) -> None:
    first = asyncio.create_task(preparer.prepare("same", reference.NAME, "hi", ROOT))
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest, match="already"):
        await preparer.prepare("same", reference.NAME, "hi", ROOT)
    assert len(await first) == 2
    assert len(await preparer.prepare("same", reference.NAME, "hi", ROOT)) == 2


async def test_nobody_there_is_unavailable_in_bounded_time(suite: Settings) -> None:
    async with open_preparer("127.0.0.1:1", suite.transport, wait_s=0.05) as preparer:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await preparer.prepare("a", reference.NAME, "hi", ROOT)


async def test_what_a_leaving_service_did_not_read_goes_to_the_next_one(
    suite: Settings, tracer_provider: TracerProvider
) -> None:
    tracer = tracer_provider.get_tracer("preprocess")
    async with AsyncExitStack() as stack, asyncio.timeout(BOUND_S):
        async with app.start(suite, tracer) as first:
            preparer = await stack.enter_async_context(open_preparer(first.address, suite.transport))
            assert len(await preparer.prepare("a", reference.NAME, "hi", ROOT)) == 2
        # its long-lived stream did not keep the first one from leaving
        waiting = asyncio.create_task(preparer.prepare("b", reference.NAME, "hi", ROOT))
        await asyncio.sleep(0)
        again = suite.preprocess.model_copy(update={"listen": first.address})
        async with app.start(suite.model_copy(update={"preprocess": again}), tracer):
            assert len(await waiting) == 2


class Falling(preprocess_pb2_grpc.PreprocessServiceServicer):
    """Breaks its first stream after one frame, unanswered; answers on the next with the text's length."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    async def Prepare(
        self, request_iterator: AsyncIterator[pb.PrepareRequest], context: object
    ) -> AsyncIterator[pb.PrepareResponse]:
        async for request in request_iterator:
            self.seen.append([item.request_id for item in request.items])
            if len(self.seen) == 1:
                raise Unavailable("falling over")
            yield pb.PrepareResponse(items=[pb.PreparedItem(request_id=item.request_id) for item in request.items])


class Stuck:
    """A call that is silent until it is cancelled, and then breaks under its writer."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def __aiter__(self) -> "Stuck":
        return self

    async def __anext__(self) -> pb.PrepareResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, frame: pb.PrepareRequest) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise asyncio.InvalidStateError("the call has ended") from None

    def cancel(self) -> None:
        self.cancelled.set()


async def test_leaving_ends_a_stream_that_breaks_in_the_same_moment() -> None:
    calls: list[Stuck] = []

    class Stub:
        def Prepare(self, wait_for_ready: bool) -> Stuck:
            calls.append(Stuck())
            return calls[-1]

    preparer = RemotePreparer(cast(Any, Stub()), "nowhere:1", 2**20, 60.0)
    running = asyncio.create_task(preparer.run())
    asking = asyncio.create_task(preparer.prepare("a", reference.NAME, "hi", ROOT))
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=1)
    asking.cancel()
    assert done, "its end was taken for one more broken stream"
    assert len(calls) == 1


async def test_what_a_broken_stream_left_unanswered_is_sent_again(suite: Settings) -> None:
    falling = Falling()

    def register(server: grpc.aio.Server) -> None:
        preprocess_pb2_grpc.add_PreprocessServiceServicer_to_server(falling, server)

    async with (
        asyncio.timeout(BOUND_S),
        serve("127.0.0.1:0", suite.transport, register, [servicer.SERVICE]) as handle,
        open_preparer(handle.address, suite.transport) as preparer,
    ):
        assert len(await preparer.prepare("a", reference.NAME, "hi", ROOT)) == 0
        assert len(await preparer.prepare("b", reference.NAME, "hi", ROOT)) == 0
    assert falling.seen == [["a"], ["a"], ["b"]]


async def test_a_stream_has_a_bounded_number_of_items_open(suite: Settings) -> None:
    num_items, opened, release = servicer.MAX_ITEMS_IN_FLIGHT + 50, 0, asyncio.Event()

    class Slow(InlinePreparer):
        def __init__(self) -> None:
            pass

        async def prepare(self, *_: object) -> NDArray[np.uint32]:
            nonlocal opened
            opened += 1
            await release.wait()
            return np.array([1], dtype=np.uint32)

    async def requests() -> AsyncIterator[pb.PrepareRequest]:
        yield pb.PrepareRequest(items=[to_item(str(number), "any", "hi", ROOT) for number in range(num_items)])

    context = cast(servicer._Context, None)
    stream = PreprocessServicer(Slow(), suite.transport.max_message_bytes).Prepare(requests(), context)
    first = asyncio.ensure_future(anext(stream))
    for _ in range(num_items):
        await asyncio.sleep(0)
    assert opened == servicer.MAX_ITEMS_IN_FLIGHT
    release.set()
    async with asyncio.timeout(BOUND_S):
        answered = [item.request_id for item in (await first).items]
        answered += [item.request_id async for frame in stream for item in frame.items]
    assert sorted(answered, key=int) == [str(number) for number in range(num_items)]


async def test_a_stream_with_bad_bytes_ends_with_a_status_of_the_callers(
    suite: Settings, service: ServerHandle
) -> None:
    async with open_channel(service.address, suite.transport) as channel:
        method = f"/{servicer.SERVICE}/Prepare"
        open_raw: Any = channel.stream_stream(method)
        call = open_raw(iter([b"\x0a\x03\x0a\x01\xff"]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "items.request_id" in str(caught.value.details())


async def test_an_item_without_a_prompt_is_answered_with_a_fault(suite: Settings, service: ServerHandle) -> None:
    async with open_channel(service.address, suite.transport) as channel:
        stub = preprocess_pb2_grpc.PreprocessServiceStub(channel)
        good = to_item("good", reference.NAME, "hi", ROOT)
        frame = pb.PrepareRequest(items=[pb.PrepareItem(request_id="bad", model=reference.NAME), good])
        answers = {item.request_id: item async for response in stub.Prepare(iter([frame])) for item in response.items}
    assert answers["bad"].fault.reason == InvalidRequest.reason
    assert answers["bad"].fault.field == "prompt"
    assert np.frombuffer(answers["good"].token_ids, "<u4").tolist() == list(b"hi")


class Reluctant:
    """Prepares for ever, and takes its time to end."""

    def __init__(self) -> None:
        self.cancelled, self.may_end = asyncio.Event(), asyncio.Event()

    async def prepare(self, request_id: str, model: str, prompt: Prompt, parent: Context) -> NDArray[np.uint32]:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
            await self.may_end.wait()
        raise AssertionError


async def test_a_caller_that_leaves_after_a_wrong_frame_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def frames() -> AsyncIterator[pb.PrepareRequest]:
        yield pb.PrepareRequest(items=[pb.PrepareItem(request_id="a"), pb.PrepareItem(request_id="b", text="hi")])
        await answered.wait()
        raise InvalidRequest("no message")

    answered, preparer = asyncio.Event(), Reluctant()
    answers = cast(Any, PreprocessServicer(cast(InlinePreparer, preparer), 1024).Prepare(frames(), cast(Any, None)))
    async with asyncio.timeout(BOUND_S):
        assert (await anext(answers)).items[0].fault.field == "prompt"
        answered.set()
        await preparer.cancelled.wait()
        leaving = asyncio.create_task(answers.aclose())
        await asyncio.sleep(0)
        preparer.may_end.set()
        await leaving
    gc.collect()  # an exception that nobody asked for is logged when its task goes
    assert not caplog.records
