"""A share of requests is traced whole; of the others the gateway keeps what failed or was slow."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, SpanContext, TraceFlags

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Sampling
from headrace.chassis import signals
from headrace.chassis.config import load_settings
from headrace.chassis.sampling import ShareSampler
from headrace.core.errors import DeadlineMissed
from headrace.models import reference
from headrace.standalone.single import running
from headrace.standalone.span_reader import Span, wait_for_trace

SLOW_MS = 400
BOUND_S = 60.0
Ask = Callable[..., Any]


@pytest.fixture
def sampling(tmp_path: Path, collecting: Any) -> Any:
    """`async with sampling(ratio) as ask` runs a suite; `await ask(request_id)` calls it."""

    @asynccontextmanager
    async def start(ratio: float) -> AsyncIterator[Ask]:
        reference.install(tmp_path)
        anywhere = {"listen": "127.0.0.1:0"}
        telemetry = {"endpoint": f"http://{collecting.address}", "sample_ratio": ratio, "keep_slower_ms": SLOW_MS}
        executor = {"engine": "reference", "models": [reference.NAME], "reference_step_ms": 5}
        overrides: dict[str, Any] = {
            "models": {"home": tmp_path},
            "telemetry": telemetry,
            "transport": {"drain_s": 1},
            "scheduler": anywhere,
            "executor": anywhere | executor,
            "encoder": {"model": ""},
            "gateway": anywhere,
        }
        async with (
            running(load_settings(overrides=overrides)) as suite,
            grpc.aio.insecure_channel(suite.gateway) as channel,
        ):
            stub = GatewayServiceStub(channel)

            async def ask(
                request_id: str, *, max_tokens: int = 3, wanted: bool | None = None, model: str = reference.NAME
            ) -> None:
                options = Sampling(max_tokens=max_tokens, ignore_eos=True)
                request = pb.GenerateRequest(model=model, text="Hi", request_id=request_id, sampling=options)
                parent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{int(wanted or False):02x}"
                metadata = () if wanted is None else (("traceparent", parent),)
                async for _ in stub.Generate(request, metadata=metadata, timeout=BOUND_S):
                    pass

            yield ask

    return start


async def test_of_what_is_left_out_the_gateway_keeps_the_failed_and_the_slow(sampling: Any, collecting: Any) -> None:
    async with sampling(0.0) as ask:
        await ask("quick")
        await ask("unwanted", wanted=False)
        await ask("slow", max_tokens=2 * SLOW_MS // 5)
        with pytest.raises(grpc.aio.AioRpcError):
            await ask("failed", model="unknown")
        await ask("wanted", wanted=True)
    # all services have sent what they had
    kept = {name: await spans_of(collecting, name) for name in ("slow", "failed", "wanted")}
    assert names(kept["failed"]) == {signals.GATEWAY_GENERATE}
    assert names(kept["slow"]) == {signals.GATEWAY_GENERATE, signals.PREPROCESS_PREPARE}
    assert names(kept["wanted"]) >= {signals.SCHEDULER_QUEUE, signals.SCHEDULER_BATCH, signals.EXECUTOR_DECODE}
    assert await spans_of(collecting, "quick", 0.3) == []
    assert await spans_of(collecting, "unwanted", 0.3) == []


async def test_what_is_drawn_is_traced_whole(sampling: Any, collecting: Any) -> None:
    async with sampling(0.999999) as ask:
        await ask("drawn")
    assert names(await spans_of(collecting, "drawn")) >= {
        *(signals.GATEWAY_GENERATE, signals.PREPROCESS_PREPARE, signals.SCHEDULER_QUEUE),
        *(signals.SCHEDULER_BATCH, signals.EXECUTOR_PREFILL, signals.EXECUTOR_DECODE),
    }


def test_the_share_is_drawn_by_trace_id() -> None:
    ids = [secrets.randbits(128) for _ in range(4_000)]
    one, other = (ShareSampler(0.25, holding=holding) for holding in (False, True))
    kept = [one.should_sample(None, trace_id, "a").decision is Decision.RECORD_AND_SAMPLE for trace_id in ids]
    assert 800 < sum(kept) < 1_200
    assert kept == [other.should_sample(None, trace_id, "b").decision.is_sampled() for trace_id in ids]
    assert one.should_sample(None, (1 << 64) - 1, "a").decision is Decision.DROP
    assert other.should_sample(None, (1 << 64) - 1, "a").decision is Decision.RECORD_ONLY


def test_a_batch_is_kept_for_any_member_that_is() -> None:
    sampler = ShareSampler(0.0, holding=False)
    kept, left_out = (Link(SpanContext(7, number, True, TraceFlags(flag))) for number, flag in ((1, 1), (2, 0)))
    assert sampler.should_sample(None, 9, "batch", links=[left_out, kept]).decision is Decision.RECORD_AND_SAMPLE
    assert sampler.should_sample(None, 9, "batch", links=[left_out]).decision is Decision.DROP


async def spans_of(collecting: Any, request_id: str, bound_s: float = BOUND_S) -> list[Span]:
    try:
        return await wait_for_trace(collecting.database, request_id, bound_s, settle_s=0.5)
    except DeadlineMissed:
        return []


def names(spans: list[Span]) -> set[str]:
    return {span.name for span in spans}
