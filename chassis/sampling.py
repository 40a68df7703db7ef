"""Which traces are kept: all that a caller wants kept, a share of the others, and those that went wrong or were slow.

The gateway decides as a request arrives, and every service follows, by the flag that travels with the trace. It keeps
the spans of its own process back of a request that was left out: they go out after all if it fails or is slow.
"""

from collections import OrderedDict
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
)
from opentelemetry.util.types import Attributes

MAX_HELD_TRACES = 4_096
"""More requests are never under way; what is left of those whose spans end after them goes, the oldest first."""
_ID_MASK = (1 << 64) - 1


class ShareSampler(Sampler):
    """A trace that begins here is kept with probability `ratio`, by its id; one that comes in as it says; what only
    links to others, a batch, if any of them is. What is left out is still recorded where `holding`."""

    def __init__(self, ratio: float, *, holding: bool) -> None:
        self._bound = round(ratio * (_ID_MASK + 1))
        self._left_out = Decision.RECORD_ONLY if holding else Decision.DROP

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        parent = get_current_span(parent_context).get_span_context()
        if parent.is_valid:
            kept = parent.trace_flags.sampled
        elif links:
            kept = any(link.context.trace_flags.sampled for link in links)
        else:
            kept = trace_id & _ID_MASK < self._bound
        decision = Decision.RECORD_AND_SAMPLE if kept else self._left_out
        return SamplingResult(decision, attributes, parent.trace_state if parent.is_valid else trace_state)

    def get_description(self) -> str:
        return f"ShareSampler({self._bound / (_ID_MASK + 1):g})"


class HeldSpans(SpanProcessor):
    """Holds the spans of traces that were left out until their request, a server's span, has ended; hands them to
    `exporting` if it failed or took `slow_s` or longer."""

    def __init__(self, exporting: BatchSpanProcessor, slow_s: float) -> None:
        self._exporting = exporting
        self._slow_ns = round(slow_s * 1e9)
        self._held: OrderedDict[int, list[ReadableSpan]] = OrderedDict()

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None or context.trace_flags.sampled:
            return
        spans = self._held.setdefault(context.trace_id, [])
        spans.append(span)
        if span.kind is SpanKind.SERVER:
            del self._held[context.trace_id]
            if self._counts(span):
                for each in spans:
                    self._exporting.on_end(_sampled(each))
        elif len(self._held) > MAX_HELD_TRACES:
            self._held.popitem(last=False)

    def _counts(self, span: ReadableSpan) -> bool:
        took_ns = (span.end_time or 0) - (span.start_time or 0)
        return span.status.status_code is StatusCode.ERROR or took_ns >= self._slow_ns


def _sampled(span: ReadableSpan) -> ReadableSpan:
    """The same span, marked to be kept: exporters pass over others."""
    context = span.context
    if context is None:
        return span
    kept = SpanContext(
        context.trace_id, context.span_id, context.is_remote, TraceFlags(TraceFlags.SAMPLED), context.trace_state
    )
    return ReadableSpan(
        name=span.name,
        context=kept,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
