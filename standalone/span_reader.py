"""The span store's read side: finds a request's trace and gives its spans as values. Never writes."""

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from headrace.chassis import signals
from headrace.core.errors import DeadlineMissed, InvalidRequest, NotFound, Unavailable

AttributeValue = str | bool | int | float | tuple[Any, ...]
STATUS_ERROR = 2
MAX_SPANS_READ = 2_000
SETTLE_S = 2.0  # exporters send every 0.5 s: after this long without a new span, none is coming
_POLL_S = 0.1
_OF_AN_ANSWER = {
    signals.GATEWAY_GENERATE,
    signals.PREPROCESS_PREPARE,
    signals.SCHEDULER_QUEUE,
    signals.SCHEDULER_BATCH,
    signals.EXECUTOR_PREFILL,
    signals.EXECUTOR_DECODE,
}
GATEWAYS = "name >= 'gateway.' AND name < 'gateway/'"  # of requests' first spans; '/' follows '.'
_COLUMNS = "trace_id, span_id, parent_id, name, service, start_ns, end_ns, status, span, resource, scope"


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span. Ids are lower-case hex; `links` are (trace id, span id), `events` names in order; `linked`
    tells that it is shown because a span of the trace links to it, not as a member of the trace. The last three are
    OTLP messages."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    error: bool
    error_message: str
    attributes: Mapping[str, AttributeValue]
    links: tuple[tuple[str, str], ...]
    events: tuple[str, ...]
    linked: bool
    otlp_span: bytes
    otlp_resource: bytes
    otlp_scope: bytes

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def request_id(self) -> str:
        return str(self.attributes.get(signals.REQUEST_ID, ""))


class SpanReader:
    """Look-ups in one open span store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find(self, identifier: str) -> list[Span]:
        """The spans of one request, then those that they link to.

        `identifier` is a request id, a trace id, or a prefix of either that fits one only. A request id gives that
        request's spans, a trace id all of its trace's. Raises NotFound or, for a prefix that fits several,
        InvalidRequest.
        """
        if self._connection.execute("SELECT 1 FROM spans WHERE request_id = ? LIMIT 1", (identifier,)).fetchone():
            return self._of_request(identifier)
        # what other services call a request may be longer than what its caller calls it: prefixes are of the caller's
        request_ids = self._starting_with("request_id", identifier, GATEWAYS)
        trace_ids = self._starting_with("trace_id", identifier.lower(), "TRUE")
        if identifier.lower() in trace_ids:
            return self._of_trace(identifier.lower())
        if len(request_ids) + len(trace_ids) > 1:
            found = ", ".join([*request_ids, *trace_ids][:4])
            raise InvalidRequest(f"{identifier!r} fits several: {found}, …", field="id")
        if request_ids:
            return self._of_request(request_ids[0])
        if trace_ids:
            return self._of_trace(trace_ids[0])
        raise NotFound(f"no request or trace {identifier!r} among the spans kept", field="id")

    def last(self) -> list[Span]:
        """The request that started last. Raises NotFound where there is none."""
        roots = self.recent(1)
        if not roots:
            raise NotFound("no request among the spans kept", field="id")
        return self._of_request(roots[0].request_id) if roots[0].request_id else self._of_trace(roots[0].trace_id)

    def recent(self, limit: int) -> list[Span]:
        """The gateway's spans of the newest requests, newest first."""
        return list(self.each(f"{GATEWAYS} ORDER BY start_ns DESC LIMIT ?", (limit,)))

    def each(self, where: str, parameters: Any = ()) -> Iterator[Span]:
        """The spans for which an SQL condition holds, in its order, read one by one."""
        for row in self._connection.execute(f"SELECT {_COLUMNS} FROM spans WHERE {where}", parameters):
            yield _span(row, linked=False)

    def _starting_with(self, column: str, prefix: str, where: str) -> list[str]:
        """At most three values of a column, the prefix itself first if it is one of them."""
        begins = f"{column} >= ? AND {column} < ? AND {where}"
        query = f"SELECT DISTINCT {column} FROM spans WHERE {begins} ORDER BY {column} LIMIT 3"
        return (
            [value for (value,) in self._connection.execute(query, (prefix, prefix + "\U0010ffff"))] if prefix else []
        )

    def _of_request(self, request_id: str) -> list[Span]:
        """A caller may run many requests in one trace, and use an id twice: the newest of that id and what is below."""
        newest = (
            "SELECT trace_id FROM spans WHERE request_id = ? ORDER BY name LIKE 'gateway.%' DESC, start_ns DESC LIMIT 1"
        )
        row = self._connection.execute(newest, (request_id,)).fetchone()
        if row is None:
            raise NotFound(f"request {request_id!r} is no longer among the spans kept", field="id")
        below = f"""
            WITH RECURSIVE mine (id) AS (
                SELECT span_id FROM spans WHERE trace_id = :trace AND request_id = :request
                UNION SELECT span_id FROM spans JOIN mine ON parent_id = id WHERE trace_id = :trace
            )
            SELECT {_COLUMNS} FROM spans WHERE trace_id = :trace AND span_id IN mine ORDER BY start_ns LIMIT :limit
        """
        return self._with_linked(self._spans(below, {"trace": row[0], "request": request_id, "limit": MAX_SPANS_READ}))

    def _of_trace(self, trace_id: str) -> list[Span]:
        query = f"SELECT {_COLUMNS} FROM spans WHERE trace_id = ? ORDER BY start_ns LIMIT ?"
        return self._with_linked(self._spans(query, (trace_id, MAX_SPANS_READ)))

    def _with_linked(self, spans: list[Span]) -> list[Span]:
        own = {(span.trace_id, span.span_id) for span in spans}
        targets = dict.fromkeys(link for span in spans for link in span.links if link not in own)
        query = f"SELECT {_COLUMNS} FROM spans WHERE trace_id = ? AND span_id = ?"
        linked = [span for target in list(targets)[:MAX_SPANS_READ] for span in self._spans(query, target, linked=True)]
        return spans + sorted(linked, key=lambda span: span.start_ns)

    def _spans(self, query: str, parameters: Any, linked: bool = False) -> list[Span]:
        return [_span(row, linked) for row in self._connection.execute(query, parameters)]


@contextmanager
def open_reader(database: Path) -> Iterator[SpanReader]:
    """Reads a span store, also while a collector writes it. Raises NotFound where there is none."""
    if not database.is_file():
        raise NotFound(f"no spans at {database}: `headrace up` collects them while it runs", field="database")
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            yield SpanReader(connection)
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"{database} cannot be read as a span store: {error}") from error


async def wait_for_trace(database: Path, request_id: str, timeout_s: float, settle_s: float = SETTLE_S) -> list[Span]:
    """The spans of a finished request once all have arrived: services export theirs at moments of their own.

    All have arrived when every service's span and every link's target is there, or, for a request that did not get
    that far, when no new one has come for `settle_s`. Raises DeadlineMissed if the gateway's own does not come in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    spans: list[Span] = []
    grown_at = loop.time()
    while True:
        found = await asyncio.to_thread(_find, database, request_id)
        if len(found) > len(spans):
            spans, grown_at = found, loop.time()
        ended = any(span.name.startswith("gateway.") for span in spans)
        if ended and (_is_whole(spans) or loop.time() - grown_at >= settle_s or loop.time() >= deadline):
            return spans
        if loop.time() >= deadline:
            raise DeadlineMissed(f"the spans of request {request_id} did not arrive within {timeout_s:g} s")
        await asyncio.sleep(_POLL_S)


def _find(database: Path, request_id: str) -> list[Span]:
    try:
        with open_reader(database) as reader:
            return reader.find(request_id)
    except (NotFound, Unavailable):  # not written yet
        return []


def _is_whole(spans: Iterable[Span]) -> bool:
    """A prompt of token ids has no preprocess.prepare, so its trace is never whole by this, only settled."""
    spans = list(spans)
    known = {(span.trace_id, span.span_id) for span in spans}
    targets = {link for span in spans if not span.linked for link in span.links}
    return {span.name for span in spans} >= _OF_AN_ANSWER and targets <= known


def _span(row: tuple[Any, ...], linked: bool) -> Span:
    trace_id, span_id, parent_id, name, service, start_ns, end_ns, status, blob, resource, scope = row
    otlp = OtlpSpan.FromString(blob)
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        service=service,
        start_ns=start_ns,
        end_ns=end_ns,
        error=status == STATUS_ERROR,
        error_message=otlp.status.message,
        attributes={attribute.key: _value(attribute.value) for attribute in otlp.attributes},
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in otlp.links),
        events=tuple(event.name for event in otlp.events),
        linked=linked,
        otlp_span=blob,
        otlp_resource=resource,
        otlp_scope=scope,
    )


def _value(value: Any) -> AttributeValue:
    match value.WhichOneof("value"):
        case "string_value":
            return str(value.string_value)
        case "bool_value":
            return bool(value.bool_value)
        case "int_value":
            return int(value.int_value)
        case "double_value":
            return float(value.double_value)
        case "array_value":
            return tuple(_value(item) for item in value.array_value.values)
        case _:
            return ""
