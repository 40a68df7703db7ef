"""The span collector: an OTLP/gRPC receiver that keeps what it gets in a bounded SQLite file.

What a single machine needs to read its own traces without another program. Reading is span_reader.py's.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.core.errors import InvalidRequest, Overloaded
from headrace.standalone.span_rows import rows_of
from headrace.standalone.span_store import MAX_SPANS, SpanStore, open_store

MAX_WAITING_EXPORTS = 64
SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


def default_database(home: Path) -> Path:
    """Where the spans of a suite with this home are kept."""
    return home / "run" / "spans.sqlite"


class TraceServicer:
    """OTLP's TraceService. Parses and writes in one thread, so that the event loop and the file have one user each."""

    def __init__(self, store: SpanStore, writer: ThreadPoolExecutor) -> None:
        self._store = store
        self._writer = writer
        self._num_waiting = 0

    async def Export(self, request: Any, context: Any) -> Any:
        """Raises Overloaded when too many exports wait, InvalidRequest when no span in it is sound."""
        if self._num_waiting >= MAX_WAITING_EXPORTS:
            raise Overloaded(
                f"{self._num_waiting} exports wait already", limit=f"{MAX_WAITING_EXPORTS} exports", retry_after_s=1.0
            )
        self._num_waiting += 1
        try:
            num_rejected = await asyncio.get_running_loop().run_in_executor(self._writer, self._take, request)
        finally:
            self._num_waiting -= 1
        response = trace_service_pb2.ExportTraceServiceResponse()
        if num_rejected:
            response.partial_success.rejected_spans = num_rejected
            response.partial_success.error_message = (
                "spans need a 16-byte trace id, an 8-byte span id and an end after their start"
            )
        return response

    def _take(self, request: Any) -> int:
        rows, num_rejected = rows_of(request)
        if num_rejected and not rows:
            raise InvalidRequest(
                "no span has a 16-byte trace id, an 8-byte span id and an end after its start", field="resource_spans"
            )
        if rows:
            self._store.write(rows)
        return num_rejected


@asynccontextmanager
async def collector(
    listen: str, database: Path, *, max_spans: int = MAX_SPANS, transport: TransportSettings
) -> AsyncIterator[str]:
    """Collects spans into `database` until the block ends; yields the address it is bound to.

    Raises ConfigError where the address cannot be bound or the file is no span store.
    """
    with open_store(database, max_spans) as store, ThreadPoolExecutor(1, thread_name_prefix="span-writer") as writer:
        register = partial(trace_service_pb2_grpc.add_TraceServiceServicer_to_server, TraceServicer(store, writer))
        async with serve(listen, transport, register, (SERVICE,)) as handle:
            await handle.set_ready(True)
            yield handle.address
