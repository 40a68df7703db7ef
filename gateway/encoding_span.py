"""The spans gateway.embed, gateway.rerank and gateway.classify: what one call was, how it went, why it failed."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from headrace.chassis import signals
from headrace.chassis.telemetry import from_metadata
from headrace.core.errors import Cancelled, EngineFault, HeadraceError
from headrace.gateway.encoding_codec import EncodeWish
from headrace.gateway.generation import Placement
from headrace.gateway.relay import deadline_missed

MAX_LINKS = 16
"""Batches that a call's span links to: its texts may go out with many."""


class EncodingSpan:
    """Records what becomes known, when it does."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._batches: set[str] = set()
        self.context = span.get_span_context()
        self.parent = set_span_in_context(span, Context())

    def named(self, request_id: str) -> None:
        """Also what is refused afterwards can be found by its id."""
        self._span.set_attribute(signals.REQUEST_ID, request_id)

    def decoded(self, wish: EncodeWish, tenant: str) -> None:
        self._span.set_attributes(
            {
                signals.GENAI_OPERATION: "embeddings",
                signals.GENAI_MODEL: wish.model.name,
                signals.QOS_CLASS: wish.qos.name.lower(),
                signals.TENANT: tenant,
                signals.NUM_TEXTS: wish.num_texts,
            }
        )

    def placed(self, placement: Placement) -> None:
        """Links to a batch that one of the texts went out with."""
        if placement.batch_id in self._batches or len(self._batches) >= MAX_LINKS:
            return
        self._batches.add(placement.batch_id)
        if placement.batch_trace.is_valid:
            self._span.add_link(placement.batch_trace)
        self._span.set_attributes(
            {
                signals.EXECUTOR_ID: placement.executor_id,
                signals.BATCH_ID: placement.batch_id,
                signals.BATCH_SIZE: placement.batch_size,
                signals.PRECISION: placement.precision.name.lower(),
            }
        )

    def finished(self, prompt_tokens: int) -> None:
        self._span.set_attributes({signals.GENAI_INPUT_TOKENS: prompt_tokens, signals.PROMPT_TOKENS: prompt_tokens})


@contextmanager
def encoding_span(
    tracer: Tracer, name: str, metadata: Iterable[tuple[str, str | bytes]], deadline: float | None
) -> Iterator[EncodingSpan]:
    """A span from call to end, however it ends."""
    span = tracer.start_span(name, context=from_metadata(metadata), kind=SpanKind.SERVER)
    try:
        yield EncodingSpan(span)
    except BaseException as error:
        failure = _failure(error, deadline)
        span.set_status(Status(StatusCode.ERROR, failure.message))
        span.set_attribute(signals.ERROR_TYPE, failure.reason)
        raise
    finally:
        span.end()


def _failure(error: BaseException, deadline: float | None) -> HeadraceError:
    """A call that was broken off has no error of its own: its deadline or its caller ended it."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, Exception):
        return EngineFault("internal error")
    if deadline is not None and asyncio.get_running_loop().time() >= deadline:
        return deadline_missed(0)
    return Cancelled("the caller went away")
