"""`headrace trace`: where one request's time went, from the spans that `headrace up` keeps."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.chassis import signals
from headrace.chassis.config import load_settings
from headrace.cli.services import Config
from headrace.cli.waterfall import duration, printable, render
from headrace.core.errors import InvalidRequest
from headrace.standalone.otlp_json import to_otlp_json
from headrace.standalone.span_reader import Span, open_reader
from headrace.standalone.spans import default_database

LISTED = 20


def trace(
    identifier: Annotated[
        str | None, typer.Argument(metavar="ID", help="A request id, a trace id, or the beginning of one.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest request; also what no ID means.")] = False,
    listing: Annotated[bool, typer.Option("--list", help=f"List the newest {LISTED} requests.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write OTLP JSON, which Jaeger's UI loads, to FILE.")
    ] = None,
    database: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The span store; default: that of `headrace up`.")
    ] = None,
    config: Config = None,
) -> None:
    """Draw where a request's time went: one row a span, over all services."""
    if (identifier is not None) + last + listing > 1:
        raise InvalidRequest("say one of ID, --last and --list", field="id")
    console = Console()
    with open_reader(database or default_database(load_settings(config).models.home)) as reader:
        if listing:
            console.print(_table(reader.recent(LISTED)))
            return
        spans = reader.last() if identifier is None else reader.find(identifier)
    if json_file is None:
        console.print(render(spans, console.width))
        return
    try:
        json_file.write_text(to_otlp_json(spans), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot write {json_file}: {error.strerror}", field="json") from error
    console.print(f"{len(spans)} spans in {json_file}", highlight=False, markup=False)


def _table(roots: list[Span]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in ("request", "trace", "class", "model", "tokens out", "time", "finish"):
        table.add_column(
            heading,
            no_wrap=heading in ("trace", "time"),
            overflow="fold",
            justify="right" if heading in ("tokens out", "time") else "left",
        )
    keys = (signals.QOS_CLASS, signals.GENAI_MODEL, signals.GENAI_OUTPUT_TOKENS)
    for span in roots:
        middle = [str(span.attributes.get(key, "")) for key in keys]
        reasons = span.attributes.get(signals.GENAI_FINISH_REASONS, ())
        finish = "+".join(map(str, reasons)) if isinstance(reasons, tuple) else str(reasons)
        ending = span.error_message or "error" if span.error else finish
        table.add_row(
            *(
                Text(printable(cell))
                for cell in (span.request_id, span.trace_id[:12], *middle, duration(span.duration_ns), ending)
            )
        )
    return table
