"""Searches over the spans that are kept: requests by what they were and how they went, a batch with its members."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.chassis import signals
from headrace.core.errors import NotFound
from headrace.standalone.span_reader import GATEWAYS, STATUS_ERROR, Span, SpanReader


@dataclass(frozen=True, slots=True)
class Search:
    """Which requests: started from `since_ns` and before `until_ns` (Unix time, 0: no bound), of this class and this
    tenant ('': any), that took `slower_than_ms` or longer, that failed. The newest come first, or the slowest."""

    since_ns: int = 0
    until_ns: int = 0
    qos: str = ""
    tenant: str = ""
    slower_than_ms: float = 0.0
    failed: bool = False
    slowest: bool = False
    limit: int = 20

    @property
    def labels(self) -> Mapping[str, str]:
        """Attributes that a request must have."""
        wanted = {signals.QOS_CLASS: self.qos, signals.TENANT: self.tenant}
        return {key: value for key, value in wanted.items() if value}


@dataclass(frozen=True, slots=True)
class Member:
    """A request in a batch: how it queued, and its gateway's span where that is still kept."""

    queue: Span
    call: Span | None

    @property
    def request_id(self) -> str:
        """As its caller knows it; else as the scheduler does."""
        return (self.call.request_id if self.call else "") or self.queue.request_id


def search(reader: SpanReader, wanted: Search) -> list[Span]:
    """The gateway's spans of the requests that fit, `limit` at most."""
    where = [GATEWAYS, "start_ns >= :since", "end_ns - start_ns >= :least"]
    if wanted.until_ns:
        where.append("start_ns < :until")
    if wanted.failed:
        where.append(f"status = {STATUS_ERROR}")
    labels = wanted.labels
    # a span's attributes are within its message: look for their bytes first, since reading a message takes longer
    where += [f"instr(span, :label{place})" for place in range(len(labels))]
    order = "end_ns - start_ns" if wanted.slowest else "start_ns"
    parameters = {
        "since": wanted.since_ns,
        "until": wanted.until_ns,
        "least": int(wanted.slower_than_ms * 1e6),
        **{f"label{place}": value.encode() for place, value in enumerate(labels.values())},
    }
    found: list[Span] = []
    for span in reader.each(f"{' AND '.join(where)} ORDER BY {order} DESC", parameters):
        if all(span.attributes.get(key) == value for key, value in labels.items()):
            found.append(span)
            if len(found) == wanted.limit:
                break
    return found


def batch_of(reader: SpanReader, identifier: str) -> tuple[Span, list[Member]]:
    """The batch of this id, else the last one that this request was dispatched in; its members in order of position.

    Raises NotFound, or InvalidRequest where several requests begin so.
    """
    named = "name = ? AND instr(span, ?) ORDER BY start_ns DESC"
    for span in reader.each(named, (signals.SCHEDULER_BATCH, identifier.encode())):
        if span.attributes.get(signals.BATCH_ID) == identifier:
            return span, _members(reader, span)
    batches = [span for span in reader.find(identifier) if span.name == signals.SCHEDULER_BATCH]
    if not batches:
        raise NotFound(f"no batch of {identifier!r} among the spans kept", field="id")
    return batches[-1], _members(reader, batches[-1])


def _members(reader: SpanReader, batch: Span) -> list[Member]:
    members = []
    for trace_id, span_id in batch.links:
        for queue in reader.each("trace_id = ? AND span_id = ?", (trace_id, span_id)):
            calls = reader.each("trace_id = ? AND span_id = ?", (trace_id, queue.parent_id))
            members.append(Member(queue, next(calls, None)))
    return sorted(members, key=lambda member: (_position(member.queue), member.queue.start_ns))


def _position(queue: Span) -> int:
    position = queue.attributes.get(signals.QUEUE_POSITION, 0)
    return position if isinstance(position, int) else 0
