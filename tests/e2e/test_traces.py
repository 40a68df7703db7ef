"""A request's trace over every layout of the suite: one trace, right parents, links both ways with its batch.

The suite collects its own spans, as `headrace up` does; the requests carry a caller's trace context.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Sampling
from headrace.chassis import signals
from headrace.chassis.config import Settings, load_settings
from headrace.models import reference
from headrace.standalone.span_reader import Span, wait_for_trace
from headrace.standalone.spans import default_database
from headrace.standalone.suite import suite

pytestmark = pytest.mark.asyncio(loop_scope="module")
ARRIVAL_S = 30.0
SERVICE_OF = {
    signals.GATEWAY_GENERATE: "headrace-gateway",
    signals.PREPROCESS_PREPARE: "headrace-gateway",  # inline; the preprocess service's where there is one
    signals.SCHEDULER_QUEUE: "headrace-scheduler",
    signals.EXECUTOR_PREFILL: "headrace-executor",
    signals.EXECUTOR_DECODE: "headrace-executor",
}


@dataclass(frozen=True)
class Traced:
    """A running suite under trace."""

    stub: GatewayServiceStub
    database: Path
    remote_preprocess: bool

    async def generate(
        self, request_id: str, trace_id: str, parent_id: str, max_tokens: int = 5, model: str = reference.NAME
    ) -> None:
        request = pb.GenerateRequest(
            model=model, text="Hi", request_id=request_id, sampling=Sampling(max_tokens=max_tokens)
        )
        metadata = (("traceparent", f"00-{trace_id}-{parent_id}-01"),)
        async for _ in self.stub.Generate(request, metadata=metadata, timeout=60):
            pass

    async def spans(self, request_id: str) -> list[Span]:
        return await wait_for_trace(self.database, request_id, ARRIVAL_S)


def settings_of(home: Path, remote_preprocess: bool) -> Settings:
    anywhere = "127.0.0.1:0"
    reference.install(home)
    return load_settings(
        overrides={
            "models": {"home": home},
            "gateway": {"listen": anywhere, "preprocess": anywhere if remote_preprocess else "inline"},
            "scheduler": {"listen": anywhere},
            "executor": {"listen": anywhere, "engine": "reference", "models": [reference.NAME], "kv_bytes": 2**20},
            "preprocess": {"listen": anywhere},
            "transport": {"drain_s": 5},
        }
    )


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[(True, False), (False, False), (False, True)],
    ids=["single", "processes", "processes-remote"],
)
async def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Traced]:
    single, remote = request.param
    home = tmp_path_factory.mktemp("home")
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def serve() -> None:  # a task of its own: a fixture's two halves run in two, a suite's must not
        async with suite(settings_of(home, remote), single, lambda service, address: None) as running:
            ready.set_result(running.gateway)
            await done.wait()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
            patch.delenv(name, raising=False)
        serving = asyncio.create_task(serve())
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        try:
            if ready.done():
                async with grpc.aio.insecure_channel(ready.result()) as channel:
                    yield Traced(GatewayServiceStub(channel), default_database(home), remote)
        finally:
            done.set()
            await serving


async def test_one_trace_a_request_over_all_services(traced: Traced) -> None:
    trace_id, caller_id = secrets.token_hex(16), secrets.token_hex(8)
    await traced.generate("one", trace_id, caller_id)
    spans = await traced.spans("one")
    own = [span for span in spans if not span.linked]
    services = SERVICE_OF | ({signals.PREPROCESS_PREPARE: "headrace-preprocess"} if traced.remote_preprocess else {})
    assert sorted((span.name, span.service) for span in own) == sorted(services.items())
    assert {span.trace_id for span in own} == {trace_id}
    root = next(span for span in own if span.name == signals.GATEWAY_GENERATE)
    assert root.parent_id == caller_id
    assert {span.parent_id for span in own if span is not root} == {root.span_id}
    assert not any(span.error for span in spans)
    (batch,) = (span for span in spans if span.linked)
    assert (batch.name, batch.service, batch.parent_id) == (signals.SCHEDULER_BATCH, "headrace-scheduler", "")
    assert batch.trace_id != trace_id
    for span in own:
        expected = () if span.name == signals.PREPROCESS_PREPARE else ((batch.trace_id, batch.span_id),)
        assert span.links == expected, span.name


async def test_batches_and_their_members_name_each_other(traced: Traced) -> None:
    names = [f"r{number}" for number in range(12)]
    caller = secrets.token_hex(16)  # all under one caller's trace: each request still has its own spans
    await asyncio.gather(*(traced.generate(name, caller, secrets.token_hex(8)) for name in names))
    members: dict[tuple[str, str], set[tuple[str, str]]] = {}
    batches: dict[tuple[str, str], Span] = {}
    for name in names:
        spans = await traced.spans(name)
        assert sorted(span.name for span in spans if not span.linked) == sorted(SERVICE_OF)
        assert all(span.request_id.split(".")[0] == name for span in spans if not span.linked)
        (queue,) = (span for span in spans if span.name == signals.SCHEDULER_QUEUE)
        (batch,) = (span for span in spans if span.linked)
        batches[batch.trace_id, batch.span_id] = batch
        members.setdefault((batch.trace_id, batch.span_id), set()).add((queue.trace_id, queue.span_id))
    for key, batch in batches.items():
        assert set(batch.links) == members[key]
        assert batch.attributes[signals.BATCH_SIZE] == len(members[key])
        assert batch.attributes[signals.BATCH_CLOSE_REASON]


async def test_a_refused_request_has_a_trace_that_says_so(traced: Traced) -> None:
    trace_id = secrets.token_hex(16)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await traced.generate("refused", trace_id, secrets.token_hex(8), model="unknown")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    spans = await wait_for_trace(traced.database, trace_id, ARRIVAL_S, settle_s=0.2)
    root = next(span for span in spans if span.name == signals.GATEWAY_GENERATE)
    assert root.error
    assert root.attributes[signals.ERROR_TYPE]
    assert not any(span.name.startswith("executor.") for span in spans)


async def test_a_cancelled_request_leaves_no_span_open(traced: Traced) -> None:
    request = pb.GenerateRequest(
        model=reference.NAME, text="Hi", request_id="cancelled", sampling=Sampling(max_tokens=4000, ignore_eos=True)
    )
    call = traced.stub.Generate(request, timeout=60)
    async for _ in call:
        call.cancel()
        break
    names = {span.name for span in await traced.spans("cancelled")}
    assert {*SERVICE_OF, signals.SCHEDULER_BATCH} <= names
