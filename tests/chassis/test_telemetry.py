"""A trace goes on across processes: in frames and in calls' metadata."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.chassis.config import TelemetrySettings
from headrace.chassis.telemetry import from_frame, from_metadata, link_to, telemetry, to_frame

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B7


@pytest.mark.parametrize("sampled", [True, False])
def test_a_frame_carries_the_whole_context(sampled: bool) -> None:
    sent = SpanContext(
        TRACE_ID, SPAN_ID, False, TraceFlags(int(sampled)), TraceState([("vendor", "a"), ("other", "b")])
    )
    frame = TraceContext.FromString(to_frame(sent).SerializeToString())
    received = link_to(frame)
    assert (received.trace_id, received.span_id, received.trace_flags) == (TRACE_ID, SPAN_ID, sampled)
    assert received.trace_state == sent.trace_state
    assert received.is_remote


def test_a_child_of_a_frame_is_of_its_trace() -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("parent") as parent:
        frame = to_frame(parent.get_span_context())
    with tracer.start_as_current_span("child", from_frame(frame)) as child:
        assert child.get_span_context().trace_id == parent.get_span_context().trace_id
    with (
        tracer.start_as_current_span("around"),
        tracer.start_as_current_span("root", from_frame(TraceContext())) as root,
    ):
        assert root.parent is None  # type: ignore[attr-defined]  # what runs around does not leak in


@pytest.mark.parametrize(
    "frame",
    [
        TraceContext(),
        TraceContext(traceparent="nonsense"),
        TraceContext(traceparent=f"00-{0:032x}-{0:016x}-01"),
        TraceContext(tracestate="vendor=a"),
    ],
)
def test_a_frame_without_a_context_has_none(frame: TraceContext) -> None:
    assert not link_to(frame).is_valid
    assert trace.get_current_span(from_frame(frame)) is trace.INVALID_SPAN


def test_a_span_that_nobody_records_goes_out_empty() -> None:
    assert to_frame(trace.INVALID_SPAN_CONTEXT) == TraceContext()


def test_metadata_carries_the_context_and_nothing_else_matters() -> None:
    parent = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"
    metadata = [("user-agent", "x"), ("grpc-trace-bin", b"\x00"), ("traceparent", parent), ("tracestate", "vendor=a")]
    context = trace.get_current_span(from_metadata(metadata)).get_span_context()
    assert (context.trace_id, context.span_id) == (TRACE_ID, SPAN_ID)
    assert context.trace_state.get("vendor") == "a"
    assert from_metadata([("traceparent", b"bytes")]) == {}


def test_without_an_endpoint_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with telemetry("gateway", "one", TelemetrySettings()) as tracer, tracer.start_as_current_span("a") as span:
        assert not span.is_recording()


@pytest.mark.parametrize("disabled", ["true", "TRUE"])
def test_the_standard_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch, disabled: str) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", disabled)
    with telemetry("gateway", "one", TelemetrySettings(endpoint="127.0.0.1:1")) as tracer:
        assert not tracer.start_span("a").is_recording()
