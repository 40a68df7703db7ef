"""Tracing and logging of a process: OTLP/gRPC out, W3C context in and out of frames and call metadata."""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.chassis.certificates import Certificates
from headrace.chassis.channel import peer_name
from headrace.chassis.config import TelemetrySettings, TlsSettings
from headrace.chassis.credentials import channel_credentials
from headrace.chassis.sampling import HeldSpans, ShareSampler
from headrace.core.role import Role

OWN_COLLECTOR = "headrace"
"""The scheme of an endpoint that is a suite's own collector with TLS: reached with the services' certificates."""

EXPORT_MS, EXPORT_MS_VARIABLE = 1_000, "OTEL_BSP_SCHEDULE_DELAY"
"""How long spans gather. Most of what tracing costs are the calls that send them, so a shorter time is dearer."""

_propagator = TraceContextTextMapPropagator()


HOLDING = frozenset({"gateway"})
"""Services that hold back what was left out, until they know how it ended."""


@contextmanager
def telemetry(
    service: str, instance: str, settings: TelemetrySettings, tls: TlsSettings | None = None
) -> Iterator[trace.Tracer]:
    """A tracer for one service of this process, flushed when the block ends.

    Spans go to settings.endpoint, else where the standard OTEL_EXPORTER_OTLP_* variables say, else nowhere (and then
    cost next to nothing). `tls` is for a suite's own collector; others have the standard variables' certificates.
    Several services in one process each have their own, so that traces tell them apart.
    """
    endpoint = (
        settings.endpoint
        or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    )
    if not endpoint or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield trace.NoOpTracerProvider().get_tracer("headrace")
        return
    resource = Resource.create(
        {"service.name": f"headrace-{service}", "service.namespace": "headrace", "service.instance.id": instance}
    )
    holding = service in HOLDING
    # where all are kept, OTEL_TRACES_SAMPLER may say otherwise
    sampler = ShareSampler(settings.sample_ratio, holding=holding) if settings.sample_ratio < 1 else None
    provider = TracerProvider(resource=resource, sampler=sampler)
    exporting = BatchSpanProcessor(
        _exporter(endpoint, tls), schedule_delay_millis=None if EXPORT_MS_VARIABLE in os.environ else EXPORT_MS
    )
    provider.add_span_processor(exporting)
    if sampler is not None and holding:
        provider.add_span_processor(HeldSpans(exporting, settings.keep_slower_ms / 1000))
    try:
        yield provider.get_tracer("headrace")
    finally:
        provider.shutdown()


def _exporter(endpoint: str, tls: TlsSettings | None) -> OTLPSpanExporter:
    scheme, _, address = endpoint.rpartition("://")
    if scheme != OWN_COLLECTOR or tls is None:
        return OTLPSpanExporter(endpoint=endpoint, insecure=scheme in ("", "http"))
    return OTLPSpanExporter(
        endpoint=f"https://{address}",
        credentials=channel_credentials(Certificates(tls, server=False).current()),
        channel_options=tuple(peer_name(tls, Role.COLLECTOR)),  # type: ignore[arg-type]  # any number of them
    )


def configure_logging(service: str, settings: TelemetrySettings) -> None:
    """One line an event on standard error, with the service's name."""
    logging.basicConfig(
        level=settings.log_level, format=f"%(asctime)s {service} %(levelname)s %(name)s: %(message)s", force=True
    )


def to_frame(context: trace.SpanContext) -> TraceContext:
    """The span's context as a frame's member; empty where the span is not recorded."""
    if not context.is_valid:
        return TraceContext()
    return TraceContext(
        traceparent=f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}",
        tracestate=context.trace_state.to_header(),
    )


def from_frame(frame: TraceContext) -> Context:
    """The parent context that a frame carries; an empty context where it carries none."""
    return from_metadata([("traceparent", frame.traceparent), ("tracestate", frame.tracestate)])


def link_to(frame: TraceContext) -> trace.SpanContext:
    """The span context that a frame carries, for a link."""
    return trace.get_current_span(from_frame(frame)).get_span_context()


def from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> Context:
    """The parent context in a call's metadata."""
    carrier = {
        key: value
        for key, value in metadata
        if key in ("traceparent", "tracestate") and isinstance(value, str) and value
    }
    return _propagator.extract(carrier, context=Context())
