"""The encoder's spans, recorded after the fact: executor.encode for each text, executor.batch for what ran together."""

import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from headrace.chassis import signals
from headrace.chassis.telemetry import from_frame, link_to
from headrace.executor.encoding.task import Done


def record(tracer: Tracer, executor_id: str, dones: Sequence[Done]) -> None:
    """One batch's texts. The batch is a root of its own, linked to the scheduler's batch and, both ways, to its texts;
    what never ran has no batch."""
    if not any(done.task.trace.traceparent for done in dones):
        return
    batch_span = _batch_span(tracer, executor_id, dones)
    for done in dones:
        ran_in = batch_span.get_span_context() if batch_span is not None and done.batch is not None else None
        context = _record_text(tracer, executor_id, done, ran_in)
        if batch_span is not None and ran_in is not None and context.is_valid:
            batch_span.add_link(context)
    if batch_span is not None:
        batch_span.end(next(done.batch.ended_ns for done in dones if done.batch is not None))


def _batch_span(tracer: Tracer, executor_id: str, dones: Sequence[Done]) -> Span | None:
    first = next((done for done in dones if done.batch is not None), None)
    if first is None or first.batch is None:
        return None
    batch, planned = first.batch, link_to(first.task.batch_trace)
    return tracer.start_span(
        signals.EXECUTOR_BATCH,
        Context(),
        SpanKind.INTERNAL,
        {
            signals.EXECUTOR_ID: executor_id,
            signals.BATCH_ID: batch.batch_id,
            signals.BATCH_SIZE: batch.num_texts,
            signals.BATCH_TOKENS: batch.num_tokens,
            signals.BATCH_PADDING: batch.padding_tokens,
            signals.BATCH_FILL: batch.num_tokens / max(1, batch.num_tokens + batch.padding_tokens),
        },
        [Link(planned)] if planned.is_valid else [],
        start_time=batch.began_ns,
    )


def _record_text(tracer: Tracer, executor_id: str, done: Done, batch: SpanContext | None) -> SpanContext:
    task, planned = done.task, link_to(done.task.batch_trace)
    span = tracer.start_span(
        signals.EXECUTOR_ENCODE,
        from_frame(task.trace),
        SpanKind.INTERNAL,
        {
            signals.REQUEST_ID: task.request_id,
            signals.EXECUTOR_ID: executor_id,
            signals.BATCH_ID: task.batch_id,
            signals.PROMPT_TOKENS: len(task.token_ids),
            signals.PADDED_TOKENS: done.padded_tokens,
        },
        [Link(each) for each in (planned, batch) if each is not None and each.is_valid],
        start_time=task.received_ns,
    )
    if done.error is not None:
        span.set_attribute(signals.ERROR_TYPE, done.error.reason)
        span.set_status(Status(StatusCode.ERROR, done.error.message))
    span.end(done.batch.ended_ns if done.batch is not None else time.time_ns())
    return span.get_span_context()
