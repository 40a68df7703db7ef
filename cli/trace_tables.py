"""Lists of requests and of a batch's members, as tables for the terminal."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.chassis import signals
from headrace.cli.waterfall import duration, printable, shown
from headrace.standalone.span_reader import Span
from headrace.standalone.span_search import Member

_RIGHT = ("tokens in", "tokens out", "first token ms", "time", "waited ms", "position")
_WHOLE = ("trace", "time", "started")


def requests_table(calls: Sequence[Span]) -> Table:
    """A row for each request, from its gateway's span."""
    table = _table(
        "request", "trace", "started", "class", "tenant", "model", "tokens out", "first token ms", "time", "end"
    )
    keys = (signals.QOS_CLASS, signals.TENANT, signals.GENAI_MODEL, signals.GENAI_OUTPUT_TOKENS, signals.TTFT_MS)
    for span in calls:
        _add(
            table,
            span.request_id,
            span.trace_id[:12],
            datetime.fromtimestamp(span.start_ns / 1e9).strftime("%m-%d %H:%M:%S"),
            *(_said(span, key) for key in keys),
            duration(span.duration_ns),
            _ending(span),
        )
    return table


def batch_view(batch: Span, members: Sequence[Member]) -> Group:
    """A batch's own figures, and a row for each member: the first cell is what `headrace trace` takes."""
    said = {
        "batch": signals.BATCH_ID,
        "executor": signals.EXECUTOR_ID,
        "members": signals.BATCH_SIZE,
        "closed": signals.BATCH_CLOSE_REASON,
        "tokens": signals.BATCH_TOKENS,
        "padding": signals.BATCH_PADDING,
        "bucket": signals.BATCH_BUCKET,
    }
    head = Text("  ").join(
        Text.assemble((f"{label} ", "dim"), printable(_said(batch, key)))
        for label, key in said.items()
        if key in batch.attributes
    )
    table = _table("request", "class", "tenant", "tokens in", "position", "waited for", "waited ms", "time", "end")
    for member in members:
        queue, call = member.queue, member.call
        _add(
            table,
            member.request_id,
            *(_said(queue, key) for key in (signals.QOS_CLASS, signals.TENANT, signals.PROMPT_TOKENS)),
            *(_said(queue, key) for key in (signals.QUEUE_POSITION, signals.WAIT_REASON)),
            f"{queue.duration_ns / 1e6:.1f}",
            duration(call.duration_ns) if call else "",
            _ending(call) if call else "no longer kept",
        )
    missing = len(batch.links) - len(members)
    return Group(head, "", table, *([Text(f"{missing} members are no longer kept", style="dim")] if missing else []))


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in headings:
        table.add_column(
            heading, no_wrap=heading in _WHOLE, overflow="fold", justify="right" if heading in _RIGHT else "left"
        )
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _said(span: Span, key: str) -> str:
    return shown(span.attributes[key]) if key in span.attributes else ""


def _ending(call: Span) -> str:
    return call.error_message or "error" if call.error else _said(call, signals.GENAI_FINISH_REASONS)
