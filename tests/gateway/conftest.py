"""A world around the real gateway: scripted scheduler and executors on real sockets, bytes as tokens."""

import asyncio
import codecs
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.api.executor.v1 import executor_pb2 as ex
from headrace.api.executor.v1 import executor_pb2_grpc
from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.scheduler.v1 import scheduler_pb2 as sc
from headrace.api.scheduler.v1 import scheduler_pb2_grpc
from headrace.api.types.v1.types_pb2 import Displacement, TraceContext
from headrace.chassis.config import Settings, load_settings
from headrace.chassis.metrics import Metrics
from headrace.client import AsyncClient
from headrace.core.errors import ModelNotFound
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason
from headrace.gateway.app import GatewayHandle, start
from headrace.gateway.ports import Message, TextStream
from headrace.gateway.screen_gate import Screener

BATCH_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MODELS = {
    "bytes": ModelInfo("bytes", "decoder", "d1", context_tokens=4096, vocab_size=256, eos_token_ids=(0,)),
    "small": ModelInfo("small", "decoder", "d2", context_tokens=16, vocab_size=256, eos_token_ids=(0,)),
    "encoder": ModelInfo("encoder", "encoder", "d3", context_tokens=16, vocab_size=256, eos_token_ids=()),
}


class ByteStream:
    """A token is a byte of UTF-8."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(token_ids))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTexts:
    def names(self) -> Sequence[str]:
        return sorted(MODELS)

    def info(self, name: str) -> ModelInfo:
        if name not in MODELS:
            raise ModelNotFound(f"no model {name!r}", field="model", limit=", ".join(MODELS))
        return MODELS[name]

    def text_stream(self, name: str) -> TextStream:
        return ByteStream()


class BytePreparer:
    """Encodes at once, or when `gate` is set. Keeps the parents it was given."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.parents: list[Context] = []

    async def prepare(
        self, request_id: str, model: str, prompt: str | Sequence[Message], parent: Context
    ) -> NDArray[np.uint32]:
        self.parents.append(parent)
        if self.gate:
            await self.gate.wait()
        text = prompt if isinstance(prompt, str) else "".join(f"{turn.role}:{turn.content}\n" for turn in prompt)
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32)


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Places every submission on `executors[0]` unless `decide` says otherwise. Keeps what it was told."""

    def __init__(self) -> None:
        self.executors: list[str] = []
        self.gateway_ids: list[str] = []
        self.submissions: list[sc.Submission] = []
        self.cancelled: list[str] = []
        self.holding = False
        self.refusal: sc.Refusal | None = None
        self.displaced: list[Displacement] = []
        self.streams: list[asyncio.Queue[sc.SubmitResponse]] = []

    def placement(self, request_id: str) -> sc.SubmitResponse:
        return sc.SubmitResponse(
            placements=[
                sc.Placement(
                    request_id=request_id,
                    executor_id="executor-0",
                    executor_address=self.executors[0],
                    batch_id="batch-7",
                    batch_size=3,
                    precision="PRECISION_INT8",
                    batch_trace=TraceContext(traceparent=BATCH_TRACE),
                    displaced=self.displaced,
                )
            ]
        )

    def place(self, request_id: str) -> None:
        self.streams[-1].put_nowait(self.placement(request_id))

    async def Submit(self, request_iterator: Any, context: Any) -> AsyncIterator[sc.SubmitResponse]:
        responses: asyncio.Queue[sc.SubmitResponse] = asyncio.Queue()
        self.streams.append(responses)

        async def read() -> None:
            async for frame in request_iterator:
                if frame.gateway_id:
                    self.gateway_ids.append(frame.gateway_id)
                self.cancelled += frame.cancelled_request_ids
                for submission in frame.submissions:
                    self.submissions.append(submission)
                    if self.refusal:
                        refusal = sc.Refusal(request_id=submission.request_id, fault=self.refusal.fault)
                        responses.put_nowait(sc.SubmitResponse(refusals=[refusal]))
                    elif not self.holding:
                        responses.put_nowait(self.placement(submission.request_id))

        reader = asyncio.create_task(read())
        try:
            while True:
                yield await responses.get()
        finally:
            reader.cancel()


Script = Callable[["Run"], Awaitable[None]]


@dataclass
class Run:
    """One started request at the fake executor."""

    start: ex.Start
    frames: asyncio.Queue[ex.ExecuteResponse]

    def send(self, data: bytes = b"", index: int = 0, finish: FinishReason = FinishReason.NONE, **more: Any) -> None:
        ids = np.frombuffer(data, np.uint8).astype("<u4").tobytes()
        output = ex.Output(
            request_id=self.start.request_id, index=index, token_ids=ids, finish_reason=finish.value, **more
        )
        self.frames.put_nowait(ex.ExecuteResponse(outputs=[output]))


async def hello(run: Run) -> None:
    for byte in b"hello":
        run.send(bytes([byte]))
        await asyncio.sleep(0)
    run.send(b"\0", finish=FinishReason.STOP, cached_prompt_tokens=1)


class FakeExecutor(executor_pb2_grpc.ExecutorServiceServicer):
    """Runs `script` for every start; a cancelled request's script is cancelled. Keeps what it was told."""

    def __init__(self) -> None:
        self.script: Script = hello
        self.starts: list[ex.Start] = []
        self.cancelled: list[str] = []
        self.demoted: list[str] = []
        self.num_streams = 0

    async def Execute(self, request_iterator: Any, context: Any) -> AsyncIterator[ex.ExecuteResponse]:
        frames: asyncio.Queue[ex.ExecuteResponse] = asyncio.Queue()
        running: dict[str, asyncio.Task[None]] = {}
        self.num_streams += 1

        async def read() -> None:
            async for frame in request_iterator:
                for member in frame.starts:
                    self.starts.append(member)
                    running[member.request_id] = asyncio.create_task(self.script(Run(member, frames)))  # type: ignore[arg-type]
                self.demoted += frame.demoted_request_ids
                for request_id in frame.cancelled_request_ids:
                    self.cancelled.append(request_id)
                    running[request_id].cancel()

        reader = asyncio.create_task(read())
        try:
            while True:
                yield await frames.get()
        finally:
            self.num_streams -= 1
            for task in (reader, *running.values()):
                task.cancel()

    async def GetStatus(self, request: Any, context: Any) -> ex.GetStatusResponse:
        return ex.GetStatusResponse()


async def serve_fake(
    add: Callable[[grpc.aio.Server], None], address: str = "127.0.0.1:0"
) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add(server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, f"127.0.0.1:{port}"


@dataclass
class World:
    scheduler: FakeScheduler
    executor: FakeExecutor
    scheduler_server: grpc.aio.Server
    scheduler_address: str
    executor_server: grpc.aio.Server
    executor_address: str
    preparer: BytePreparer
    gateway: GatewayHandle
    client: AsyncClient
    spans: InMemorySpanExporter
    metrics: Metrics
    settings: Settings

    async def idle(self) -> None:
        """Waits until the gateway holds nothing for any call."""
        await eventually(lambda: not any(self.held()))

    def held(self) -> tuple[int, ...]:
        use = self.gateway.in_use()
        return use.requests, use.tokens, use.num_bytes, use.active, use.waiting, use.running

    async def span(self) -> Any:
        """The one call's span, once it has ended."""
        await eventually(lambda: len(self.spans.get_finished_spans()) > 0)
        return self.spans.get_finished_spans()[-1]

    async def on_the_wire(
        self, request: gateway_pb2.GenerateRequest
    ) -> tuple[list[bytes], grpc.aio.AioRpcError | None]:
        """Every message of a Generate call as bytes, by a client that knows nothing of ours, and how it ended."""
        messages: list[bytes] = []
        async with grpc.aio.insecure_channel(self.gateway.address) as channel:
            call = channel.unary_stream("/headrace.gateway.v1.GatewayService/Generate")(request.SerializeToString())
            try:
                async for message in call:
                    messages.append(message)
            except grpc.aio.AioRpcError as error:
                return messages, error
        return messages, None

    async def restart_scheduler(self) -> None:
        await self.scheduler_server.stop(0)
        self.scheduler_server, _ = await serve_fake(
            lambda server: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.scheduler, server),
            self.scheduler_address,
        )


async def eventually(condition: Callable[[], bool]) -> None:
    """Fails the test if the condition does not come true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (nothing there could set an event)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def make_world(
    screener: Screener | None = None, screen: dict[str, Any] | None = None, **gateway: Any
) -> AsyncIterator[World]:
    """`screen`, `gateway`: settings of their sections."""
    scheduler, executor, preparer = FakeScheduler(), FakeExecutor(), BytePreparer()
    scheduler_server, scheduler_address = await serve_fake(
        lambda server: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    )
    executor_server, executor_address = await serve_fake(
        lambda server: executor_pb2_grpc.add_ExecutorServiceServicer_to_server(executor, server)
    )
    scheduler.executors.append(executor_address)
    settings = load_settings(
        overrides={
            "gateway": {"listen": "127.0.0.1:0", "scheduler": scheduler_address, **gateway},
            "transport": {"drain_s": 0.2},
            "screen": screen or {},
        }
    )
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    metrics = Metrics("gateway")
    async with (
        start(settings, provider.get_tracer("test"), preparer, ByteTexts(), screener, metrics) as handle,
        AsyncClient(handle.address, retries=0) as client,
    ):
        world = World(
            scheduler,
            executor,
            scheduler_server,
            scheduler_address,
            executor_server,
            executor_address,
            preparer,
            handle,
            client,
            spans,
            metrics,
            settings,
        )
        await eventually(lambda: len(scheduler.gateway_ids) > 0)
        try:
            yield world
        finally:
            await world.scheduler_server.stop(0)
            await world.executor_server.stop(0)


@pytest.fixture
def world() -> Callable[..., Any]:
    return make_world


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    return eventually
