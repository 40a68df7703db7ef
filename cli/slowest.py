"""The slowest request of late, as evidence beside figures: from the spans that `headrace up` keeps."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from headrace.chassis import signals
from headrace.cli.waterfall import duration, printable, shown
from headrace.core.errors import NotFound, Unavailable
from headrace.standalone.span_reader import Span, open_reader
from headrace.standalone.span_search import Search, search

PARTS = 3
"""So many of the spans in which it spent its time are named."""


def slowest(database: Path, since_ns: int) -> str:
    """One line on the slowest request that began since then (Unix time), and where its time went; '' where no spans
    are kept here, or none is so new."""
    try:
        with open_reader(database) as reader:
            for call in search(reader, Search(since_ns=since_ns, slowest=True, limit=1)):
                return describe(call, reader.find(call.request_id or call.trace_id))
    except (NotFound, Unavailable):
        pass
    return ""


def describe(call: Span, spans: Sequence[Span]) -> str:
    """The longest of what lies directly below a call's span, the same names together."""
    times: defaultdict[str, int] = defaultdict(int)
    waits = ""
    for span in spans:
        if span.parent_id == call.span_id and not span.linked:
            times[span.name] += span.duration_ns
            if span.name == signals.SCHEDULER_QUEUE and signals.WAIT_REASON in span.attributes:
                waits = shown(span.attributes[signals.WAIT_REASON])
    longest = sorted(times.items(), key=lambda each: -each[1])[:PARTS]
    parts = [
        f"{name} {duration(took_ns)}" + (f" ({waits})" if waits and name == signals.SCHEDULER_QUEUE else "")
        for name, took_ns in longest
    ]
    of = call.request_id or call.trace_id
    return printable(f"slowest request: {duration(call.duration_ns)}, of it {', '.join(parts) or 'nothing traced'}") + (
        f"\n  headrace trace {printable(of)}"
    )
