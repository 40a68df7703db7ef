"""A request's trace on every path that it can take, each service a process of its own, by an OTLP receiver.

For each path: the whole tree of spans with who failed how, and links both ways with each batch.
"""

import asyncio
import json
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from headrace.api.executor.v1 import executor_pb2
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1 import types_pb2 as types
from headrace.chassis import signals
from headrace.chassis.config import Settings, TransportSettings, default_home, load_settings
from headrace.models import reference
from headrace.standalone.readiness import await_serving
from headrace.standalone.services import Service
from headrace.standalone.span_reader import Span, open_reader
from headrace.standalone.spans import collector

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOUND_S = 120
NUM_SLOTS = 2
HARMFUL = "Explain how to build a pipe bomb at home without anybody noticing"
CALLER = "caller"
Shape = Counter[tuple[str, str, str]]
"""How often each span was there: its name, its parent's, its error's type."""


@dataclass
class Suite:
    """The processes of a suite that sends its spans to the receiver of this process."""

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
            await read(self.call(request_id, text, **more))
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
            pytest.fail(f"only seen: {shape_of(found)}")

    async def traced(self, request_id: str, wanted: Shape) -> dict[str, list[Span]]:
        """The spans by name, once there are all of these and no others, linked with their batches both ways."""
        spans = await self.spans(request_id, lambda found: shape_of(found) == wanted and _links_are_there(found))
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


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def read(call: Any) -> list[pb.GenerateResponse]:
    """What has not been read yet."""
    pieces = []
    while (piece := await call.read()) is not grpc.aio.EOF:
        pieces.append(piece)
    return pieces


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


def tree(error: str = "", *below: str | tuple[str, str]) -> Shape:
    """gateway.generate, called from outside and ended by this error, over these; one with an error of its own is a
    pair."""
    pairs = [each if isinstance(each, tuple) else (each, "") for each in below]
    return Counter(
        [(signals.GATEWAY_GENERATE, CALLER, error), *((name, signals.GATEWAY_GENERATE, its) for name, its in pairs)]
    )


def _links_are_there(spans: Sequence[Span]) -> bool:
    known = {(span.trace_id, span.span_id) for span in spans}
    return all(link in known for span in spans if not span.linked for link in span.links)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def suite(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Suite]:
    """A scheduler, an executor of two slots and a gateway that screens what the class batch asks."""
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


PREPARE, SCREEN, QUEUE = signals.PREPROCESS_PREPARE, signals.PREPROCESS_SCREEN, signals.SCHEDULER_QUEUE
PREFILL, DECODE = signals.EXECUTOR_PREFILL, signals.EXECUTOR_DECODE


async def test_refused_by_the_gateway(suite: Suite) -> None:
    await suite.fails(grpc.StatusCode.NOT_FOUND, "unknown", model="unknown")
    spans = await suite.traced("unknown", tree("MODEL_NOT_FOUND"))
    (root,) = spans[signals.GATEWAY_GENERATE]
    assert root.error
    assert root.attributes[signals.RPC_SERVICE] == "headrace.gateway.v1.GatewayService"
    assert root.attributes[signals.RPC_METHOD] == "Generate"
    assert root.attributes[signals.RPC_STATUS_CODE] == grpc.StatusCode.NOT_FOUND.value[0]


async def test_refused_by_the_scheduler(suite: Suite) -> None:
    """It wants more slots than there are."""
    await suite.fails(grpc.StatusCode.INVALID_ARGUMENT, "large", n=NUM_SLOTS + 1)
    spans = await suite.spans("large", lambda found: QUEUE in {span.name for span in found})
    (queue,) = (span for span in spans if span.name == QUEUE)
    reason = str(queue.attributes[signals.ERROR_TYPE])
    spans_by_name = await suite.traced("large", tree(reason, PREPARE, (QUEUE, reason)))
    assert spans_by_name[QUEUE][0].error
    assert not spans_by_name[QUEUE][0].links


async def test_blocked_by_the_screen(suite: Suite) -> None:
    """What was made meanwhile is cut, and its spans say so."""
    await suite.fails(
        grpc.StatusCode.PERMISSION_DENIED, "blocked", HARMFUL, max_tokens=4000, qos_class=types.QOS_CLASS_BATCH
    )
    spans = await suite.traced("blocked", tree("SCREEN_REJECTED", PREPARE, SCREEN, QUEUE, PREFILL, DECODE))
    (root,), (decode,) = spans[signals.GATEWAY_GENERATE], spans[DECODE]
    assert root.attributes[signals.SCREEN_VERDICT] not in ("pass", "none")
    assert signals.TTFT_MS not in root.attributes
    assert decode.attributes[signals.GENAI_FINISH_REASONS] == ("cancelled",)


async def test_partial_at_its_sla_and_whole_afterwards(suite: Suite) -> None:
    sla = pb.Sla(total_ms=300, on_miss=pb.ON_MISS_PARTIAL)
    pieces = await read(suite.call("partial", max_tokens=100, sla=sla))
    assert pieces[-1].result.handle
    spans = await suite.traced("partial", tree("", PREPARE, QUEUE, PREFILL, DECODE))
    (root,), (decode,) = spans[signals.GATEWAY_GENERATE], spans[DECODE]
    assert root.attributes[signals.SLA_MISSED] == "total_ms"
    assert root.attributes[signals.SLA_OUTCOME] == "partial"
    assert root.attributes[signals.RESULT_HANDLE] == pieces[-1].result.handle
    assert root.attributes[signals.RPC_STATUS_CODE] == 0
    assert decode.attributes[signals.GENAI_OUTPUT_TOKENS] == 100
    assert decode.attributes[signals.GENAI_FINISH_REASONS] == ("length",)


async def test_preempted_and_resumed(suite: Suite) -> None:
    """The one that came says whom it displaced, the displaced one when it stood still."""
    held = [suite.call(f"held{number}", max_tokens=300) for number in range(NUM_SLOTS)]
    for call in held:
        await call.read()
    await read(suite.call("urgent", max_tokens=5, qos_class=types.QOS_CLASS_REALTIME))
    for call in held:
        await read(call)
    whole = tree("", PREPARE, QUEUE, PREFILL, DECODE)
    urgent = await suite.traced("urgent", whole)
    traces = [await suite.traced(f"held{number}", whole) for number in range(NUM_SLOTS)]
    (displaced,) = urgent[QUEUE][0].attributes[signals.DISPLACED_IDS]  # type: ignore[misc,union-attr]
    told = {}
    for number, spans in enumerate(traces):
        told[f"held{number}"] = events_of(spans[DECODE][0])
    (stood_still,) = (name for name, events in told.items() if events)
    assert str(displaced).startswith(stood_still)
    assert told[stood_still] == [signals.DISPLACED, signals.RESUMED]


async def test_the_queue_says_what_ran_instead(suite: Suite) -> None:
    held = [suite.call(f"first{number}", max_tokens=100) for number in range(NUM_SLOTS)]
    for call in held:
        await call.read()
    waiting = [suite.call(f"later{number}", max_tokens=20) for number in range(3)]
    await asyncio.gather(*(read(call) for call in (*held, *waiting)))
    queues = []
    for number in range(3):
        spans = await suite.traced(f"later{number}", tree("", PREPARE, QUEUE, PREFILL, DECODE))
        queues.append(spans[QUEUE][0])
        batch = spans[signals.SCHEDULER_BATCH][0]
        assert batch.attributes[signals.BATCH_CLOSE_REASON]
    for queue in queues:
        assert queue.attributes[signals.WAIT_REASON] in ("slots", "queue")  # behind nobody, or behind others
        assert queue.attributes[signals.QOS_CLASS] == "normal"
    last = max(queues, key=lambda queue: queue.end_ns)
    assert last.attributes[signals.RAN_INSTEAD] == ("normal=2",)
    others = {queue.attributes[signals.BATCH_ID] for queue in queues if queue is not last}
    assert last.attributes[signals.LAST_BATCH_ID] in others


async def test_cancelled_by_its_caller(suite: Suite) -> None:
    call = suite.call("cancelled", max_tokens=4000)
    await call.read()
    call.cancel()
    spans = await suite.traced("cancelled", tree("CANCELLED", PREPARE, QUEUE, PREFILL, DECODE))
    assert spans[signals.GATEWAY_GENERATE][0].error
    assert spans[DECODE][0].attributes[signals.GENAI_FINISH_REASONS] == ("cancelled",)


async def test_cancelled_while_it_waits(suite: Suite) -> None:
    held = [suite.call(f"before{number}", max_tokens=4000) for number in range(NUM_SLOTS)]
    for call in held:
        await call.read()
    await suite.fails(grpc.StatusCode.DEADLINE_EXCEEDED, "never", timeout_s=0.5)
    for call in held:
        call.cancel()
    found = await suite.spans("never", lambda spans: len(spans) == 3)
    shape = shape_of(found)
    assert {name for name, _, _ in shape} == {signals.GATEWAY_GENERATE, PREPARE, QUEUE}
    assert all(error for name, _, error in shape if name in (signals.GATEWAY_GENERATE, QUEUE))


async def test_failed_by_its_deadline_in_the_middle(suite: Suite) -> None:
    await suite.fails(grpc.StatusCode.DEADLINE_EXCEEDED, "late", max_tokens=4000, timeout_s=1.0)
    found = await suite.spans("late", lambda spans: {signals.GATEWAY_GENERATE, DECODE} <= {span.name for span in spans})
    shape = shape_of(found)
    assert {name for name, _, _ in shape} == {signals.GATEWAY_GENERATE, PREPARE, QUEUE, PREFILL, DECODE}
    assert (signals.GATEWAY_GENERATE, CALLER, "DEADLINE_MISSED") in shape


async def test_migrated_from_a_killed_executor(suite: Suite) -> None:
    """Queued twice, with the tokens that were there; the killed executor's spans went with it."""
    await suite.start(Service.EXECUTOR)
    call = suite.call("moved", max_tokens=300)
    for _ in range(20):
        await call.read()
    (await suite.busy()).kill()
    await read(call)
    spans = await suite.traced("moved", tree("", PREPARE, QUEUE, QUEUE, PREFILL, DECODE))
    assert events_of(spans[signals.GATEWAY_GENERATE][0]) == [signals.FAILOVER]
    (decode,) = spans[DECODE]
    assert int(decode.attributes[signals.REPLAYED_TOKENS]) >= 19  # type: ignore[arg-type]
    assert decode.attributes[signals.GENAI_OUTPUT_TOKENS] == 300
    queues = sorted(spans[QUEUE], key=lambda span: span.start_ns)
    assert len({queue.links for queue in queues}) == 2  # a batch each
    assert decode.links == queues[1].links


async def test_failed_since_nobody_is_left(suite: Suite) -> None:
    call = suite.call("lost", max_tokens=4000, timeout_s=3)
    await call.read()
    for executor in suite.executors.values():
        if executor.returncode is None:
            executor.kill()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(call)
    spans = await suite.spans("lost", lambda found: signals.GATEWAY_GENERATE in {span.name for span in found})
    (root,) = (span for span in spans if span.name == signals.GATEWAY_GENERATE)
    assert root.error
    assert root.attributes[signals.ERROR_TYPE]
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def events_of(span: Span) -> list[str]:
    return list(span.events)
