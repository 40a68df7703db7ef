"""What the spans of all public calls have in common: who called, where the call was placed, why it failed.

What a span is told, the call's metrics are told too.
"""

import asyncio
from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context

from headrace.chassis import signals
from headrace.chassis.status import code_of
from headrace.chassis.telemetry import from_metadata
from headrace.core.errors import Cancelled, EngineFault, HeadraceError
from headrace.gateway.generation import Placement
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.relay import deadline_missed

SERVICE = "headrace.gateway.v1.GatewayService"
_METHODS = {
    signals.GATEWAY_GENERATE: "Generate",
    signals.GATEWAY_EMBED: "Embed",
    signals.GATEWAY_RERANK: "Rerank",
    signals.GATEWAY_CLASSIFY: "Classify",
}


class CallSpan:
    """A server span under the caller's context; `parent` is the context for what it does inside."""

    def __init__(
        self, tracer: Tracer, meters: GatewayMeters, name: str, metadata: Iterable[tuple[str, str | bytes]]
    ) -> None:
        self._span = tracer.start_span(name, context=from_metadata(metadata), kind=SpanKind.SERVER)
        self.context = self._span.get_span_context()
        self._meter = meters.call(name, self.context)
        self.parent = set_span_in_context(self._span, Context())
        self._method = _METHODS.get(name, "")
        self._called = False

    def called(self) -> None:
        """By gRPC and in our own contract, not through another door."""
        self._called = True
        self._span.set_attributes(
            {signals.RPC_SYSTEM: "grpc", signals.RPC_SERVICE: SERVICE, signals.RPC_METHOD: self._method}
        )
        self._span.set_attribute(signals.RPC_STATUS_CODE, 0)

    def named(self, request_id: str) -> None:
        """Also what is refused afterwards can be found by its id."""
        self._span.set_attribute(signals.REQUEST_ID, request_id)

    def placed(self, placement: Placement) -> None:
        """Links to the batch that the request went out with."""
        self._meter.placed(placement.precision)
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

    def failed(self, error: BaseException | None, deadline: float | None, num_tokens: int = 0) -> None:
        """Ended by `error`, with so many tokens made; None: broken off. `deadline` is on the event loop's clock."""
        failure = _failure(error, deadline, num_tokens)
        self._meter.failed(failure)
        self._span.set_status(Status(StatusCode.ERROR, failure.message))
        self._span.set_attribute(signals.ERROR_TYPE, failure.reason)
        if self._called:
            self._span.set_attribute(signals.RPC_STATUS_CODE, code_of(failure).value[0])

    def _end(self) -> None:
        self._meter.ended()
        self._span.end()


def _failure(error: BaseException | None, deadline: float | None, num_tokens: int) -> HeadraceError:
    """A call that was broken off has no error of its own: its deadline or its caller ended it."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, Exception):
        return EngineFault("internal error")
    if deadline is not None and asyncio.get_running_loop().time() >= deadline:
        return deadline_missed(num_tokens)
    return Cancelled("the caller went away")
