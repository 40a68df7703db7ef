"""Spans made by the real SDK and sent by the real exporter to a real collector."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import Tracer

from headrace.chassis import signals
from headrace.chassis.config import TelemetrySettings, TransportSettings
from headrace.chassis.telemetry import telemetry
from headrace.standalone.spans import collector

MS = 10**6
BEGIN_NS = 1_700_000_000 * 10**9


@dataclass(frozen=True)
class Collecting:
    """A running collector: its address and its file."""

    address: str
    database: Path

    def tracer(self, service: str) -> AbstractContextManager[Tracer]:
        """A service's tracer, flushed when its block ends. The block must end off the collector's event loop."""
        return telemetry(service, f"{service}-1", TelemetrySettings(endpoint=f"http://{self.address}"))


@pytest.fixture
async def collecting(tmp_path: Path) -> AsyncIterator[Collecting]:
    database = tmp_path / "run" / "spans.sqlite"
    async with collector("127.0.0.1:0", database, transport=TransportSettings(drain_s=2)) as address:
        yield Collecting(address, database)


@pytest.fixture
def record_request() -> Callable[..., None]:
    return _record_request


def _record_request(collecting: Collecting, request_id: str, begin_ns: int = BEGIN_NS) -> None:
    """One generation as five spans of four services, and the batch that it was dispatched in, linked both ways."""

    def span(
        tracer: Tracer, name: str, parent: trace.Span | None, start_ms: int, **attributes: str | int
    ) -> trace.Span:
        context = trace.set_span_in_context(parent) if parent else None
        return tracer.start_span(name, context, start_time=begin_ns + start_ms * MS, attributes={**attributes})

    with (
        collecting.tracer("gateway") as gateway,
        collecting.tracer("preprocess") as preprocess,
        collecting.tracer("scheduler") as scheduler,
        collecting.tracer("executor") as executor,
    ):
        root = span(gateway, signals.GATEWAY_GENERATE, None, 0)
        root.set_attributes({signals.REQUEST_ID: request_id, signals.QOS_CLASS: "realtime", signals.GENAI_MODEL: "toy"})
        prepare = span(preprocess, signals.PREPROCESS_PREPARE, root, 1)
        prepare.end(begin_ns + 2 * MS)
        queue = span(scheduler, signals.SCHEDULER_QUEUE, root, 3)
        queue.set_attributes({signals.WAIT_REASON: "slots", signals.REQUEST_ID: f"{request_id}.0a1b"})
        batch = span(scheduler, signals.SCHEDULER_BATCH, None, 9)
        batch.set_attributes({signals.BATCH_SIZE: 1, signals.BATCH_CLOSE_REASON: "idle"})
        batch.add_link(queue.get_span_context())
        queue.add_link(batch.get_span_context())
        batch.end(begin_ns + 10 * MS)
        queue.end(begin_ns + 10 * MS)
        prefill = span(executor, signals.EXECUTOR_PREFILL, root, 11)
        prefill.end(begin_ns + 30 * MS)
        decode = span(executor, signals.EXECUTOR_DECODE, root, 30)
        decode.set_attribute(signals.NUM_STEPS, 12)
        decode.end(begin_ns + 99 * MS)
        root.set_attribute(signals.GENAI_FINISH_REASONS, ("stop",))
        root.end(begin_ns + 100 * MS)
