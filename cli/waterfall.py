"""A trace as a picture in the terminal: a row a span, indented below its parent, a bar where it lies in time."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.chassis import signals
from headrace.standalone.span_reader import Span

MAX_ROWS = 300
MIN_BAR_CELLS = 0.25

LABELS = {
    signals.GENAI_MODEL: "model",
    signals.QOS_CLASS: "class",
    signals.TENANT: "tenant",
    signals.PRECISION: "precision",
    signals.WAIT_REASON: "waited",
    signals.QUEUE_POSITION: "position",
    signals.RAN_INSTEAD: "meanwhile",
    signals.BATCH_ID: "batch",
    signals.BATCH_SIZE: "members",
    signals.BATCH_CLOSE_REASON: "closed",
    signals.BATCH_CLASSES: "classes",
    signals.BATCH_TOKENS: "tokens",
    signals.BATCH_PADDING: "padding",
    signals.BATCH_BUCKET: "bucket",
    signals.EXECUTOR_ID: "executor",
    signals.PROMPT_TOKENS: "prompt tokens",
    signals.GENAI_INPUT_TOKENS: "tokens in",
    signals.GENAI_OUTPUT_TOKENS: "tokens out",
    signals.NUM_CHUNKS: "chunks",
    signals.NUM_STEPS: "steps",
    signals.TTFT_MS: "first token ms",
    signals.ENGINE_MS: "engine ms",
    signals.GENAI_FINISH_REASONS: "finish",
    signals.ERROR_TYPE: "error",
}
_ROOT_KEYS = (signals.GENAI_MODEL, signals.QOS_CLASS, signals.TENANT, signals.PRECISION)
_ROOT_USAGE = (signals.GENAI_INPUT_TOKENS, signals.GENAI_OUTPUT_TOKENS, signals.TTFT_MS, signals.GENAI_FINISH_REASONS)
_SHOWN = {
    signals.GATEWAY_GENERATE: (*_ROOT_KEYS, *_ROOT_USAGE),
    signals.SCHEDULER_QUEUE: (signals.WAIT_REASON, signals.QUEUE_POSITION, signals.RAN_INSTEAD),
    signals.EXECUTOR_PREFILL: (signals.EXECUTOR_ID, signals.PROMPT_TOKENS, signals.NUM_CHUNKS, signals.ENGINE_MS),
    signals.EXECUTOR_DECODE: (signals.GENAI_OUTPUT_TOKENS, signals.NUM_STEPS, signals.GENAI_FINISH_REASONS),
}
"""What a row says beside an error; one whose name is not here says all that has a label, save what the root says."""

_COLOURS = {
    "headrace-gateway": "cyan",
    "headrace-preprocess": "magenta",
    "headrace-scheduler": "yellow",
    "headrace-executor": "green",
}


def render(spans: Sequence[Span], width: int) -> RenderableType:
    """The waterfall of what SpanReader.find gave, `width` cells wide; spans that are linked to stand below the rest."""
    own = [span for span in spans if not span.linked]
    if not own:
        return Text("no spans")
    start_ns = min(span.start_ns for span in own)
    total_ns = max(max(span.end_ns for span in own) - start_ns, 1)
    rows = [*tree(own), *((span, -1) for span in spans if span.linked)]
    bar_width = max(10, (width - 46) // 2)
    table = Table(box=None, padding=(0, 1, 0, 0), width=width, header_style="dim", pad_edge=False)
    table.add_column("span", no_wrap=True, max_width=26)
    table.add_column("service", no_wrap=True, max_width=11)
    table.add_column(f"0 … {duration(total_ns)}", no_wrap=True, width=bar_width)
    table.add_column("time", no_wrap=True, justify="right", min_width=8)
    table.add_column("", overflow="fold", min_width=8)
    for span, depth in rows[:MAX_ROWS]:
        colour = "red" if span.error else _COLOURS.get(span.service, "blue")
        name = f"↳ {span.name}" if depth < 0 else "  " * min(depth, 8) + span.name
        bar = _bar(span.start_ns - start_ns, span.end_ns - start_ns, total_ns, bar_width, colour)
        table.add_row(
            Text(printable(name), style=colour),
            Text(printable(span.service.removeprefix("headrace-"))),
            bar,
            duration(span.duration_ns),
            _details(span),
        )
    left_out = [Text(f"… and {len(rows) - MAX_ROWS} spans more", style="dim")] if len(rows) > MAX_ROWS else []
    return Group(_title(own, total_ns), table, *left_out)


def tree(spans: Iterable[Span]) -> list[tuple[Span, int]]:
    """Spans with their depth, parents before children, brothers by start. A span whose parent is not here is a root."""
    spans = sorted(spans, key=lambda span: span.start_ns)
    known = {span.span_id for span in spans}
    children: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        children[span.parent_id if span.parent_id in known else ""].append(span)
    rows: list[tuple[Span, int]] = []
    waiting = [(span, 0) for span in reversed(children[""])]
    while waiting:
        span, depth = waiting.pop()
        rows.append((span, depth))
        waiting += [(child, depth + 1) for child in reversed(children[span.span_id])]
    return rows


def duration(time_ns: int) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 10**9), ("ms", 10**6)):
        if time_ns >= size:
            value = time_ns / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{time_ns / 1000:.0f} µs"


def printable(text: str) -> str:
    """Span names and attributes come from callers: control characters must not reach the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def _title(own: Sequence[Span], total_ns: int) -> Text:
    named = [span for span in own if span.request_id]
    asked = [span for span in named if span.name.startswith("gateway.")]  # the caller's name for it, not ours
    request_ids = dict.fromkeys(span.request_id for span in asked or named)
    ids = next(iter(request_ids), "-") if len(request_ids) < 2 else f"{len(request_ids)} requests"
    return Text.assemble(
        ("request ", "dim"),
        (printable(ids), "bold"),
        ("  trace ", "dim"),
        own[0].trace_id,
        "  ",
        (duration(total_ns), "bold"),
        "\n",
        overflow="fold",
    )


def _bar(begin_ns: int, end_ns: int, total_ns: int, width: int, colour: str) -> RenderableType:
    cell_ns = total_ns / width
    if end_ns < 0 or begin_ns > total_ns:  # a linked span may lie outside the trace
        return Text("")
    begin = min(max(begin_ns, 0), total_ns - MIN_BAR_CELLS * cell_ns)
    end = min(max(end_ns, begin + MIN_BAR_CELLS * cell_ns), total_ns)
    return Bar(total_ns, begin, end, width=width, color=colour)


def _details(span: Span) -> Text:
    keys = (*_SHOWN.get(span.name, [key for key in LABELS if key not in _ROOT_KEYS]), signals.ERROR_TYPE)
    said = {LABELS[key]: span.attributes[key] for key in keys if key in span.attributes}
    if span.linked and signals.BATCH_SIZE not in span.attributes:
        said["members"] = len(span.links)
    details = Text(", ").join(
        Text.assemble((f"{label} ", "dim"), printable(shown(value))) for label, value in said.items()
    )
    for name, times in Counter(span.events).items():
        details.append(f" {printable(name)}{f' {times} times' if times > 1 else ''}", style="yellow")
    if span.error and span.error_message:
        details.append(f" {printable(span.error_message)}", style="red")
    return details


def shown(value: object) -> str:
    """An attribute's value."""
    if isinstance(value, tuple):
        return "+".join(shown(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
