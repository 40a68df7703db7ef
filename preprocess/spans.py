"""A stage's span: what it works for, and why it failed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer

from headrace.chassis import signals
from headrace.core.errors import HeadraceError


@contextmanager
def stage(tracer: Tracer, name: str, parent: Context, attributes: Mapping[str, str | int]) -> Iterator[Span]:
    """The span is current within the block, and names the error of ours that ends it."""
    with tracer.start_as_current_span(name, parent, attributes=attributes) as span:
        try:
            yield span
        except HeadraceError as error:
            span.set_attribute(signals.ERROR_TYPE, error.reason)
            raise
