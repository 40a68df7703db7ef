"""Spans as OTLP/JSON, the form that Jaeger's UI loads by upload.

OTLP/JSON is protobuf's JSON mapping with two changes: ids are hex (protobuf gives base64), enums are numbers.
"""

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from headrace.standalone.span_reader import Span


def to_otlp_json(spans: Sequence[Span]) -> str:
    """One JSON document: `resourceSpans`, grouped by resource and scope."""
    groups: dict[bytes, dict[bytes, list[Span]]] = {}
    for span in spans:
        groups.setdefault(span.otlp_resource, {}).setdefault(span.otlp_scope, []).append(span)
    document = {
        "resourceSpans": [
            {
                "resource": _plain(Resource.FromString(resource)),
                "scopeSpans": [
                    {
                        "scope": _plain(InstrumentationScope.FromString(scope)),
                        "spans": [_span(span) for span in members],
                    }
                    for scope, members in scopes.items()
                ],
            }
            for resource, scopes in groups.items()
        ]
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _span(span: Span) -> dict[str, Any]:
    message = OtlpSpan.FromString(span.otlp_span)
    data = _plain(message)
    data |= {"traceId": span.trace_id, "spanId": span.span_id, "parentSpanId": span.parent_id}
    for link, target in zip(data.get("links", ()), message.links, strict=False):
        link |= {"traceId": target.trace_id.hex(), "spanId": target.span_id.hex()}
    return data


def _plain(message: Any) -> dict[str, Any]:
    return MessageToDict(message, use_integers_for_enums=True)
