"""From an OTLP export to rows of the span store; a span that breaks the protocol becomes no row."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.chassis import signals

MAX_NS = 2**63 - 1
MAX_KEY_CHARS = 256  # of a searched attribute: longer ones are kept in the span but not searchable


class SpanRow(NamedTuple):
    """A span's columns, in the store's order. Ids are lower-case hex, '' for no parent; blobs are OTLP messages."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    status: int
    request_id: str | None
    span: bytes
    resource: bytes
    scope: bytes


def rows_of(export: ExportTraceServiceRequest) -> tuple[list[SpanRow], int]:
    """The rows of an export's sound spans, and how many spans were not sound."""
    rows: list[SpanRow] = []
    num_rejected = 0
    for resource, scope, span in _spans(export):
        if _is_sound(span):
            rows.append(_row(span, resource, scope))
        else:
            num_rejected += 1
    return rows, num_rejected


def _spans(export: ExportTraceServiceRequest) -> Iterator[tuple[Any, Any, Any]]:
    for of_resource in export.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield of_resource.resource, of_scope.scope, span


def _is_sound(span: Any) -> bool:
    ids = (
        len(span.trace_id) == 16
        and any(span.trace_id)
        and len(span.span_id) == 8
        and any(span.span_id)
        and len(span.parent_span_id) in (0, 8)
    )
    return ids and 0 < span.start_time_unix_nano <= span.end_time_unix_nano <= MAX_NS


def _row(span: Any, resource: Any, scope: Any) -> SpanRow:
    return SpanRow(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        service=_text(resource.attributes, "service.name") or "",
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=span.status.code,
        request_id=_text(span.attributes, signals.REQUEST_ID),
        span=span.SerializeToString(),
        resource=resource.SerializeToString(),
        scope=scope.SerializeToString(),
    )


def _text(attributes: Iterable[Any], key: str) -> str | None:
    value = next((attribute.value.string_value for attribute in attributes if attribute.key == key), "")
    return value if 0 < len(value) <= MAX_KEY_CHARS else None
