"""Two requests side by side: how long each stage of either took, and what else is not the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from headrace.chassis import signals
from headrace.cli.waterfall import LABELS, duration, printable, shown
from headrace.standalone.span_reader import Span

_STAGES = (
    signals.PREPROCESS_PREPARE,
    signals.PREPROCESS_SCREEN,
    signals.SCHEDULER_QUEUE,
    signals.EXECUTOR_PREFILL,
    signals.EXECUTOR_DECODE,
    signals.EXECUTOR_ENCODE,
)
"""In the order of a request's life; a request's own span comes before them."""
_WORTH_NS, _WORTH = 1_000_000, 1.5
"""A stage stands out where it took so much longer than the other request's."""


@dataclass(frozen=True, slots=True)
class Row:
    """A stage (`is_stage`) or something said of it, of either request; '' where one has no such."""

    name: str
    first: str
    second: str
    difference: str = ""
    is_stage: bool = False
    stands_out: bool = False


def compare(first: Sequence[Span], second: Sequence[Span]) -> list[Row]:
    """A row for each stage with its time, below it one for each thing that its spans say and that is not the same.

    A stage that a request went through several times (a failover, several answers) has a row for each.
    """
    rows: list[Row] = []
    for left, right in _pairs(_own(first), _own(second)):
        rows.append(_stage(left, right))
        rows += _said(left, right)
    return rows


def side_by_side(first: Sequence[Span], second: Sequence[Span]) -> Table:
    """The comparison as a table; stages that took much longer than the other's are red there."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("", no_wrap=True)
    for spans in (first, second):
        table.add_column(Text(printable(_name(spans))), overflow="fold")
    table.add_column("difference", no_wrap=True, justify="right")
    for row in compare(first, second):
        style = "bold" if row.is_stage else "dim"
        table.add_row(
            Text(f"{'' if row.is_stage else '  '}{printable(row.name)}", style=style),
            Text(printable(row.first)),
            Text(printable(row.second)),
            Text(row.difference, style="red" if row.stands_out else ""),
        )
    return table


def _own(spans: Sequence[Span]) -> Mapping[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        if not span.linked:
            found.setdefault("" if span.name.startswith("gateway.") else span.name, []).append(span)
    return found


def _pairs(first: Mapping[str, list[Span]], second: Mapping[str, list[Span]]) -> list[tuple[Span | None, Span | None]]:
    return [pair for name in ("", *_STAGES) for pair in zip_longest(first.get(name, ()), second.get(name, ()))]


def _stage(left: Span | None, right: Span | None) -> Row:
    either = left or right
    name = either.name if either else ""
    if left is None or right is None:
        times = [duration(span.duration_ns) if span else "" for span in (left, right)]
        return Row(name, times[0], times[1], is_stage=True)
    more = right.duration_ns - left.duration_ns
    shorter, longer = sorted((left.duration_ns, right.duration_ns))
    return Row(
        name,
        duration(left.duration_ns),
        duration(right.duration_ns),
        f"{'-' if more < 0 else '+'}{duration(abs(more))}",
        is_stage=True,
        stands_out=longer - shorter >= _WORTH_NS and longer >= _WORTH * shorter,
    )


def _said(left: Span | None, right: Span | None) -> list[Row]:
    rows = []
    for key, label in LABELS.items():
        values = [shown(span.attributes[key]) if span and key in span.attributes else "" for span in (left, right)]
        if values[0] != values[1]:
            rows.append(Row(label, values[0], values[1]))
    messages = [span.error_message if span else "" for span in (left, right)]
    if messages[0] != messages[1]:
        rows.append(Row("message", messages[0], messages[1]))
    return rows


def _name(spans: Sequence[Span]) -> str:
    named = [span.request_id for span in spans if span.name.startswith("gateway.") and span.request_id]
    return named[0] if named else spans[0].trace_id[:12] if spans else "-"
