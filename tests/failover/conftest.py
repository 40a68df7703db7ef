"""Services as real processes that tests kill and stop, and a gateway in this process whose spans can be read."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.api.executor.v1 import executor_pb2
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.chassis import signals
from headrace.chassis.config import Settings, load_settings
from headrace.chassis.metrics import Metrics
from headrace.client import AsyncClient
from headrace.gateway import app as gateway_app
from headrace.models import reference
from headrace.models.repository import Repository
from headrace.preprocess.inline import InlinePreparer
from headrace.preprocess.pipeline import open_pipeline
from headrace.preprocess.text_models import TextModels
from headrace.standalone.readiness import await_serving
from headrace.standalone.services import Service, listening

PATIENCE_S = 120
LEASE_MS = 30_000


@dataclass
class Running:
    """A service's process and its address."""

    service: Service
    process: Process
    address: str

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def num_running(self) -> int:
        """Requests on this executor."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            status = await ExecutorServiceStub(channel).GetStatus(
                executor_pb2.GetStatusRequest(), timeout=PATIENCE_S, wait_for_ready=True
            )
        return status.num_running


@dataclass
class Fleet:
    """Starts processes that end with the test; `settings` are what each gets."""

    settings: Settings
    stack: AsyncExitStack
    executors: list[Running] = field(default_factory=list)
    scheduler: Running = field(init=False)
    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    async def start(self, service: Service, address: str = "") -> Running:
        """A ready one, at an address of its own or at this one."""
        settings = listening(self.settings, service, address) if address else self.settings
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.standalone.process", service), stdin=PIPE, stdout=PIPE
        )
        self.stack.push_async_callback(_end, process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(settings.model_dump_json().encode() + b"\n")
        report = json.loads(await process.stdout.readline())
        running = Running(service, process, report["address"])
        await await_serving(running.address, settings.transport, PATIENCE_S)
        if service is Service.EXECUTOR:
            self.executors.append(running)
        elif service is Service.SCHEDULER:
            self.scheduler = running
        return running

    async def gateway(self) -> gateway_app.GatewayHandle:
        """In this process."""
        texts, provider = TextModels(Repository(self.settings.models.home)), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        tracer = provider.get_tracer("test")
        pipeline = await self.stack.enter_async_context(open_pipeline(texts, 1))
        preparer = InlinePreparer(pipeline, tracer, Metrics("gateway"))
        handle = await self.stack.enter_async_context(gateway_app.start(self.settings, tracer, preparer, texts))
        await await_serving(handle.address, self.settings.transport, PATIENCE_S)
        return handle

    async def kill_scheduler(self) -> None:
        """Returns once it has gone."""
        self.scheduler.kill()
        await self.scheduler.process.wait()

    async def client(self, address: str, **options: Any) -> AsyncClient:
        return await self.stack.enter_async_context(AsyncClient(address, **options))

    async def busiest(self) -> Running:
        """The executor with the most requests, one at least."""
        counts = [await executor.num_running() for executor in self.executors]
        assert max(counts), "nothing runs"
        return self.executors[counts.index(max(counts))]

    def failovers(self) -> list[Any]:
        """Of all calls that have ended, the events."""
        calls: list[ReadableSpan] = [
            span for span in self.spans.get_finished_spans() if span.name == signals.GATEWAY_GENERATE
        ]
        return [event for span in calls for event in span.events if event.name == signals.FAILOVER]


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


OpenFleet = Callable[..., Any]


@pytest.fixture
def fleet(tmp_path: Path) -> OpenFleet:
    """`async with fleet(step_ms=20) as it` runs a scheduler and two executors, of the reference engine unless told
    otherwise; sections' settings go on top."""

    @asynccontextmanager
    async def open_fleet(step_ms: float = 20, executors: int = 2, **sections: dict[str, Any]) -> AsyncIterator[Fleet]:
        anywhere = {"listen": "127.0.0.1:0"}
        executor: dict[str, Any] = {
            **anywhere,
            "engine": "reference",
            "models": (reference.NAME,),
            "reference_step_ms": step_ms,
            "threads": 1,
        }
        overrides: dict[str, dict[str, Any]] = {
            "models": {"home": tmp_path},
            "gateway": anywhere,
            "scheduler": {**anywhere, "lease_ms": LEASE_MS},
            "preprocess": anywhere,
            "executor": executor,
            "transport": {"drain_s": 0.5},
        }
        for name, values in sections.items():
            overrides[name] = {**overrides[name], **values}
        if overrides["executor"]["engine"] == "reference":
            reference.install(tmp_path)
        async with AsyncExitStack() as stack:
            it = Fleet(load_settings(None, overrides), stack)
            scheduler = await it.start(Service.SCHEDULER)
            known = {
                name: getattr(it.settings, name).model_copy(update={"scheduler": scheduler.address})
                for name in ("gateway", "executor")
            }
            it.settings = it.settings.model_copy(update=known)
            for _ in range(executors):
                await it.start(Service.EXECUTOR)
            yield it

    return open_fleet
