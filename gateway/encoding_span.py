"""The spans gateway.embed, gateway.rerank and gateway.classify: what one call was, how it went, why it failed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import Tracer

from headrace.chassis import signals
from headrace.gateway.call_span import CallSpan
from headrace.gateway.encoding_codec import EncodeWish
from headrace.gateway.generation import Placement
from headrace.gateway.meters import GatewayMeters

MAX_LINKS = 16
"""Batches that a call's span links to: its texts may go out with many."""


class EncodingSpan(CallSpan):
    """Records what becomes known, when it does."""

    def __init__(
        self, tracer: Tracer, meters: GatewayMeters, name: str, metadata: Iterable[tuple[str, str | bytes]]
    ) -> None:
        super().__init__(tracer, meters, name, metadata)
        self._batches: set[str] = set()

    def decoded(self, wish: EncodeWish, tenant: str) -> None:
        self._meter.decoded(wish.model.name, wish.qos)
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
        """Links to each batch that one of the texts went out with, MAX_LINKS at most."""
        if placement.batch_id not in self._batches and len(self._batches) < MAX_LINKS:
            self._batches.add(placement.batch_id)
            super().placed(placement)

    def finished(self, prompt_tokens: int) -> None:
        self._meter.prepared(prompt_tokens)
        self._span.set_attributes({signals.GENAI_INPUT_TOKENS: prompt_tokens, signals.PROMPT_TOKENS: prompt_tokens})

    def end(self) -> None:
        self._end()


@contextmanager
def encoding_span(
    tracer: Tracer,
    meters: GatewayMeters,
    name: str,
    metadata: Iterable[tuple[str, str | bytes]],
    deadline: float | None,
) -> Iterator[EncodingSpan]:
    """A span from call to end, however it ends."""
    span = EncodingSpan(tracer, meters, name, metadata)
    try:
        yield span
    except BaseException as error:
        span.failed(error, deadline)
        raise
    finally:
        span.end()
