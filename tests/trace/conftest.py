"""Spans made by the real SDK and sent by the real exporter to a real collector, also by a suite of processes."""

import asyncio
import json
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.trace import Tracer

from headrace.api.executor.v1 import executor_pb2
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1 import types_pb2 as types
from headrace.chassis import signals
from headrace.chassis.config import Settings, TelemetrySettings, TransportSettings, default_home, load_settings
from headrace.chassis.telemetry import telemetry
from headrace.models import reference
from headrace.standalone.readiness import await_serving
from headrace.standalone.services import Service
from headrace.standalone.span_reader import Span, open_reader
from headrace.standalone.spans import collector

MS = 10**6
BEGIN_NS = 1_700_000_000 * 10**9
BOUND_S = 120
NUM_SLOTS = 2
CALLER = "caller"
Shape = Counter[tuple[str, str, str]]
"""How often each span was there: its name, its parent's, its error's type."""


@dataclass(frozen=True)
class Collecting:
    """A running collector: its address and its file."""

    address: str
    database: Path

    def tracer(self, service: str) -> AbstractContextManager[Tracer]:
        """A service's tracer, flushed when its block ends. The block must end off the collector's event loop."""
        return telemetry(service, f"{service}-1", TelemetrySettings(endpoint=f"http://{self.address}"))


@pytest.fixture
async def collecting(tmp_path: Path) -> AsyncIterator[Collecting]:
    database = tmp_path / "run" / "spans.sqlite"
    async with collector("127.0.0.1:0", database, transport=TransportSettings(drain_s=2)) as address:
        yield Collecting(address, database)


@pytest.fixture
def record_request() -> Callable[..., None]:
    return _record_request


def _record_request(collecting: Collecting, request_id: str, begin_ns: int = BEGIN_NS) -> None:
    """One generation as five spans of four services, and the batch that it was dispatched in, linked both ways."""

    def span(
        tracer: Tracer, name: str, parent: trace.Span | None, start_ms: int, **attributes: str | int
    ) -> trace.Span:
        context = trace.set_span_in_context(parent) if parent else None
        return tracer.start_span(name, context, start_time=begin_ns + start_ms * MS, attributes={**attributes})

    with (
        collecting.tracer("gateway") as gateway,
        collecting.tracer("preprocess") as preprocess,
        collecting.tracer("scheduler") as scheduler,
        collecting.tracer("executor") as executor,
    ):
        root = span(gateway, signals.GATEWAY_GENERATE, None, 0)
        root.set_attributes({signals.REQUEST_ID: request_id, signals.QOS_CLASS: "realtime", signals.GENAI_MODEL: "toy"})
        prepare = span(preprocess, signals.PREPROCESS_PREPARE, root, 1)
        prepare.end(begin_ns + 2 * MS)
        queue = span(scheduler, signals.SCHEDULER_QUEUE, root, 3)
        queue.set_attributes({signals.WAIT_REASON: "slots", signals.REQUEST_ID: f"{request_id}.0a1b"})
        batch = span(scheduler, signals.SCHEDULER_BATCH, None, 9)
        batch.set_attributes({signals.BATCH_SIZE: 1, signals.BATCH_CLOSE_REASON: "idle"})
        batch.add_link(queue.get_span_context())
        queue.add_link(batch.get_span_context())
        batch.end(begin_ns + 10 * MS)
        queue.end(begin_ns + 10 * MS)
        prefill = span(executor, signals.EXECUTOR_PREFILL, root, 11)
        prefill.end(begin_ns + 30 * MS)
        decode = span(executor, signals.EXECUTOR_DECODE, root, 30)
        decode.set_attribute(signals.NUM_STEPS, 12)
        decode.end(begin_ns + 99 * MS)
        root.set_attribute(signals.GENAI_FINISH_REASONS, ("stop",))
        root.end(begin_ns + 100 * MS)


@dataclass
class Suite:
    """Its processes: a scheduler, an executor of `num_slots` slots, a gateway that screens what the class batch asks;
    others as tests start them."""

    num_slots = NUM_SLOTS

    settings: Settings
    database: Path
    stack: AsyncExitStack
    stub: Any = None
    executors: dict[str, Process] = field(default_factory=dict)
    """By address."""

    async def start(self, service: Service) -> str:
        """Its address, once it serves."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.standalone.process", service), stdin=PIPE, stdout=PIPE
        )
        self.stack.push_async_callback(_end, process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self.settings.model_dump_json().encode() + b"\n")
        address: str = json.loads(await process.stdout.readline())["address"]
        if service is Service.EXECUTOR:
            self.executors[address] = process
        await await_serving(address, self.settings.transport, BOUND_S)
        return address

    def call(
        self,
        request_id: str,
        text: str = "Hi",
        *,
        max_tokens: int = 5,
        n: int = 1,
        timeout_s: float = BOUND_S,
        **more: Any,
    ) -> Any:
        """A call under a caller's trace."""
        sampling = types.Sampling(max_tokens=max_tokens, n=n, ignore_eos=True)
        request = pb.GenerateRequest(
            **{"model": reference.NAME, **more}, text=text, request_id=request_id, sampling=sampling
        )
        metadata = (("traceparent", f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"),)
        return self.stub.Generate(request, metadata=metadata, timeout=timeout_s)

    async def busy(self) -> Process:
        """The executor that has a request. Fails where none has."""
        for address, process in self.executors.items():
            async with grpc.aio.insecure_channel(address) as channel:
                status = await ExecutorServiceStub(channel).GetStatus(executor_pb2.GetStatusRequest(), timeout=BOUND_S)
            if status.num_running:
                return process
        raise AssertionError("no executor has a request")

    async def fails(self, code: grpc.StatusCode, request_id: str, text: str = "Hi", **more: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.read(self.call(request_id, text, **more))
        assert caught.value.code() is code

    async def spans(self, request_id: str, seen: Callable[[Sequence[Span]], bool]) -> list[Span]:
        """The request's spans and its batches', once they are what is looked for. Fails where they never are."""
        found: list[Span] = []
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    found = await asyncio.to_thread(self._find, request_id)
                    if seen(found):
                        return found
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"only seen: {self.shape_of(found)}")

    async def traced(self, request_id: str, wanted: Shape) -> dict[str, list[Span]]:
        """The spans by name, once there are all of these and no others, linked with their batches both ways."""
        spans = await self.spans(request_id, lambda found: self.shape_of(found) == wanted and _links_are_there(found))
        batches = {(span.trace_id, span.span_id): span for span in spans if span.linked}
        queues = [span for span in spans if span.name == signals.SCHEDULER_QUEUE and span.links]
        for queue in queues:
            (link,) = queue.links
            assert (queue.trace_id, queue.span_id) in batches[link].links
        for span in spans:
            assert set(span.links) <= set(batches) or span.linked
        assert len({span.trace_id for span in spans if not span.linked}) == 1
        by_name: dict[str, list[Span]] = {}
        for span in spans:
            by_name.setdefault(span.name, []).append(span)
        return by_name

    def _find(self, request_id: str) -> list[Span]:
        with suppress(Exception), open_reader(self.database) as reader:
            return reader.find(request_id)
        return []

    @staticmethod
    async def read(call: Any) -> list[pb.GenerateResponse]:
        """What has not been read yet."""
        pieces = []
        while (piece := await call.read()) is not grpc.aio.EOF:
            pieces.append(piece)
        return pieces

    @staticmethod
    def shape_of(spans: Sequence[Span]) -> Shape:
        own = {span.span_id: span for span in spans if not span.linked}
        return Counter(
            (
                span.name,
                own[span.parent_id].name if span.parent_id in own else CALLER,
                str(span.attributes.get(signals.ERROR_TYPE, "")),
            )
            for span in own.values()
        )


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def _links_are_there(spans: Sequence[Span]) -> bool:
    known = {(span.trace_id, span.span_id) for span in spans}
    return all(link in known for span in spans if not span.linked for link in span.links)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def suite(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Suite]:
    """Under way for a module's tests."""
    home = tmp_path_factory.mktemp("home")
    reference.install(home)
    (home / "models" / "minilm").symlink_to(default_home() / "models" / "minilm")
    anywhere, database = {"listen": "127.0.0.1:0"}, home / "spans.sqlite"
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(
            collector("127.0.0.1:0", database, transport=TransportSettings(drain_s=1))
        )
        executor = {"engine": "reference", "models": [reference.NAME], "reference_step_ms": 10, "num_slots": NUM_SLOTS}
        overrides: dict[str, Any] = {
            "models": {"home": home},
            "telemetry": {"endpoint": f"http://{address}"},
            "transport": {"drain_s": 1},
            "screen": {"rules": [{"qos": "batch", "policy": "block"}], "budget_ms": 60_000},
            "scheduler": anywhere,
            "executor": anywhere | executor,
            "gateway": anywhere,
            "results": {"store": str(home / "results.db")},
        }
        it = Suite(load_settings(overrides=overrides), database, stack)
        scheduler = {"scheduler": await it.start(Service.SCHEDULER)}
        for name in ("executor", "gateway"):
            overrides[name] = overrides[name] | scheduler
        it.settings = load_settings(overrides=overrides)
        await it.start(Service.EXECUTOR)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(await it.start(Service.GATEWAY)))
        it.stub = GatewayServiceStub(channel)
        yield it
