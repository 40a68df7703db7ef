"""Spans of the control plane: how long each request queued and why, and one root span a batch, linked both ways."""

from collections import Counter
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from headrace.chassis import signals
from headrace.core.errors import Cancelled, HeadraceError
from headrace.scheduler.policy.commands import Dispatch, Member
from headrace.scheduler.policy.events import Request


class QueueSpans:
    """The spans of waiting requests, by serial: each ends at its dispatch, refusal or drop.

    `waited` is told of each that is dispatched, with its span's context.
    """

    def __init__(self, tracer: Tracer, waited: Callable[[Member, SpanContext], None] = lambda *_: None) -> None:
        self._tracer = tracer
        self._waited = waited
        self._spans: dict[int, Span] = {}
        self._dispatched: Counter[str] = Counter()
        self._before: dict[int, Counter[str]] = {}
        self._last_batch_id = ""

    def begin(self, request: Request, parent: Context) -> None:
        span = self._tracer.start_span(signals.SCHEDULER_QUEUE, context=parent, kind=SpanKind.INTERNAL)
        if span.is_recording():
            span.set_attributes(
                {
                    signals.REQUEST_ID: request.request_id,
                    signals.GENAI_MODEL: request.model,
                    signals.QOS_CLASS: request.qos_class.name.lower(),
                    signals.TENANT: request.tenant,
                    signals.PROMPT_TOKENS: request.prompt_tokens,
                    signals.GENAI_MAX_TOKENS: request.max_output_tokens,
                }
            )
            self._before[request.serial] = self._dispatched.copy()
        self._spans[request.serial] = span

    def dispatched(self, dispatch: Dispatch) -> SpanContext:
        """Ends the members' spans and records their batch; returns the batch's context."""
        spans = [self._spans.pop(member.request.serial) for member in dispatch.members]
        batch = self._tracer.start_span(
            signals.SCHEDULER_BATCH,
            context=Context(),  # a root: a batch belongs to all its members
            links=[Link(context) for span in spans if (context := span.get_span_context()).is_valid],
        )
        context = batch.get_span_context()
        if batch.is_recording():
            batch.set_attributes(
                {
                    signals.BATCH_ID: dispatch.batch_id,
                    signals.EXECUTOR_ID: dispatch.executor_id,
                    signals.BATCH_SIZE: len(dispatch.members),
                    signals.BATCH_TOKENS: dispatch.prompt_tokens,
                    signals.BATCH_CLOSE_REASON: dispatch.close_reason.name.lower(),
                    signals.BATCH_CLASSES: sorted(
                        {member.request.qos_class.name.lower() for member in dispatch.members}
                    ),
                }
            )
            if dispatch.padded_tokens:
                batch.set_attributes(
                    {signals.BATCH_BUCKET: dispatch.padded_tokens, signals.BATCH_PADDING: dispatch.padding_tokens}
                )
        for span, member in zip(spans, dispatch.members, strict=True):
            self._waited(member, span.get_span_context())
            if span.is_recording():
                _describe(span, dispatch, member, context)
            self._say_what_ran(span, member.request)
            span.end()
        self._dispatched.update(member.request.qos_class.name.lower() for member in dispatch.members)
        self._last_batch_id = dispatch.batch_id
        batch.end()
        return context

    def refused(self, request: Request, error: HeadraceError) -> None:
        span = self._spans.pop(request.serial)
        self._say_what_ran(span, request)
        span.set_attribute(signals.ERROR_TYPE, error.reason)
        span.set_status(Status(StatusCode.ERROR, error.message))
        span.end()

    def dropped(self, request: Request) -> None:
        """Its gateway went away or gave it up: not an error of ours."""
        span = self._spans.pop(request.serial)
        self._say_what_ran(span, request)
        span.set_attribute(signals.ERROR_TYPE, Cancelled.reason)
        span.end()

    def _say_what_ran(self, span: Span, request: Request) -> None:
        """What was dispatched while it waited."""
        before = self._before.pop(request.serial, None)
        if before is None or not (ran := self._dispatched - before):
            return
        span.set_attribute(signals.RAN_INSTEAD, [f"{qos}={number}" for qos, number in sorted(ran.items())])
        span.set_attribute(signals.LAST_BATCH_ID, self._last_batch_id)


def _describe(span: Span, dispatch: Dispatch, member: Member, batch: SpanContext) -> None:
    span.set_attributes(
        {
            signals.QUEUE_POSITION: member.position,
            signals.WAIT_REASON: str(member.wait_reason),
            signals.PRECISION: member.precision.name.lower(),
            signals.EXECUTOR_ID: dispatch.executor_id,
            signals.BATCH_ID: dispatch.batch_id,
            signals.BATCH_SIZE: len(dispatch.members),
            signals.BATCH_CLOSE_REASON: dispatch.close_reason.name.lower(),
        }
    )
    if member.displaced:
        span.set_attribute(signals.DISPLACED_IDS, [each.request_id for each in member.displaced])
    if batch.is_valid:
        span.add_link(batch)
