"""The real gateway between a scripted scheduler and executor, on real sockets; a token is a byte."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.api.executor.v1 import executor_pb2 as ex
from headrace.api.executor.v1 import executor_pb2_grpc
from headrace.api.scheduler.v1 import scheduler_pb2 as sc
from headrace.api.scheduler.v1 import scheduler_pb2_grpc
from headrace.chassis.config import load_settings
from headrace.client import AsyncClient
from headrace.core.model import ModelInfo
from headrace.gateway.app import start

MODELS = {
    name: ModelInfo(name, "decoder", name, context_tokens=8192, vocab_size=256, eos_token_ids=(0,))
    for name in ("bytes", "other")
}


class _Text:
    def push(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode("latin-1")

    def flush(self) -> str:
        return ""


class _Texts:
    def names(self):
        return sorted(MODELS)

    def info(self, name):
        return MODELS[name]

    def text_stream(self, name):
        return _Text()

    def token_bytes(self, name, token_id):
        return bytes([token_id % 256])


class _Preparer:
    async def prepare(self, request_id, model, prompt, parent):
        text = prompt if isinstance(prompt, str) else "".join(message.content for message in prompt)
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32)


class _Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Places everything on the one executor; keeps what was submitted."""

    def __init__(self):
        self.address, self.submissions, self.linked = "", [], asyncio.Event()

    async def Submit(self, request_iterator, context):
        async for frame in request_iterator:
            self.linked.set()
            for submission in frame.submissions:
                self.submissions.append(submission)
                placement = sc.Placement(
                    request_id=submission.request_id,
                    executor_id="e",
                    executor_address=self.address,
                    precision="PRECISION_INT8",
                )
                yield sc.SubmitResponse(placements=[placement])


class _Executor(executor_pb2_grpc.ExecutorServiceServicer):
    """Runs `script(start, send)` for each start until it ends or is cancelled; `steps` counts what was sent of each."""

    def __init__(self):
        self.script, self.steps, self.cancelled, self.started = None, {}, [], {}

    async def Execute(self, request_iterator, context):
        frames, running = asyncio.Queue(), {}

        def send(start, **output):
            self.steps[start.request_id] = self.steps.get(start.request_id, 0) + 1
            frames.put_nowait(ex.ExecuteResponse(outputs=[ex.Output(request_id=start.request_id, **output)]))

        async def read():
            async for frame in request_iterator:
                for member in frame.starts:
                    self.started[member.request_id] = member
                    running[member.request_id] = asyncio.create_task(self.script(member, send))
                for request_id in frame.cancelled_request_ids:
                    running[request_id].cancel()
                    self.cancelled.append(request_id)

        reader = asyncio.create_task(read())
        try:
            while True:
                yield await frames.get()
        finally:
            for task in (reader, *running.values()):
                task.cancel()


async def at_once(member, send):
    send(member, token_ids=b"\x68\0\0\0", finish_reason="FINISH_REASON_STOP")


async def eventually(condition):
    """Fails the test where it does not come true."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (nothing there could set an event)
            await asyncio.sleep(0.005)


class World:
    def __init__(self, gateway, scheduler, executor, stack, spans):
        self.gateway, self.scheduler, self.executor, self.spans = gateway, scheduler, executor, spans
        self._stack = stack

    async def client(self, **options) -> AsyncClient:
        client = AsyncClient(self.gateway.address, **{"retries": 0} | options)
        return await self._stack.enter_async_context(client)

    def held(self):
        use = self.gateway.in_use()
        return use.requests, use.tokens, use.num_bytes, use.active, use.waiting, use.running

    async def idle(self):
        await eventually(lambda: not any(self.held()))


async def _serve(stack, add):
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stack.push_async_callback(server.stop, 0)
    return f"127.0.0.1:{port}"


@asynccontextmanager
async def make_world(gateway=None, drain_s=0.2, **tenants):
    scheduler, executor = _Scheduler(), _Executor()
    executor.script = at_once
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with AsyncExitStack() as stack:
        scheduler.address = await _serve(
            stack, lambda server: executor_pb2_grpc.add_ExecutorServiceServicer_to_server(executor, server)
        )
        submit = await _serve(
            stack, lambda server: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
        )
        settings = load_settings(
            overrides={
                "gateway": {"listen": "127.0.0.1:0", "scheduler": submit} | (gateway or {}),
                "transport": {"drain_s": drain_s},
                "tenants": tenants,
            }
        )
        handle = await stack.enter_async_context(
            start(settings, provider.get_tracer("test"), _Preparer(), _Texts())  # type: ignore[arg-type]
        )
        async with asyncio.timeout(30):
            await scheduler.linked.wait()
        async with AsyncExitStack() as clients:
            yield World(handle, scheduler, executor, clients, spans)


@pytest.fixture
def world():
    return make_world


@pytest.fixture
def until():
    return eventually
