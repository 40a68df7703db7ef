"""`headrace trace`: where one request's time went, from the spans that `headrace up` keeps; which requests there were,
what ran in a batch, and how two requests differ."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.chassis.config import load_settings
from headrace.cli.comparison import side_by_side
from headrace.cli.moments import moment, unix_ns
from headrace.cli.services import Config
from headrace.cli.trace_tables import batch_view, requests_table
from headrace.cli.waterfall import render
from headrace.client.values import Qos
from headrace.core.errors import InvalidRequest
from headrace.standalone.otlp_json import to_otlp_json
from headrace.standalone.span_reader import Span, open_reader
from headrace.standalone.span_search import Search, batch_of, search
from headrace.standalone.spans import default_database

LISTED = 20
_SEARCH = "Searching"


def trace(
    identifier: Annotated[
        str | None, typer.Argument(metavar="ID", help="A request id, a trace id, or the beginning of one.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest request; also what no ID means.")] = False,
    other: Annotated[
        str | None, typer.Option("--with", metavar="ID", help="Compare with this request, side by side.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="ID", help="The members of this batch, or of this request's.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write OTLP JSON, which Jaeger's UI loads, to FILE.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List requests, the newest first.", rich_help_panel=_SEARCH)
    ] = False,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="From 10m ago (s, m, h, d) or a date and time on.", rich_help_panel=_SEARCH),
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Up to then.", rich_help_panel=_SEARCH)] = "",
    qos: Annotated[Qos | None, typer.Option("--class", help="Of this class.", rich_help_panel=_SEARCH)] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Of this tenant.", rich_help_panel=_SEARCH)] = "",
    slow: Annotated[
        float, typer.Option("--slow", metavar="MS", min=0, help="That took so long or longer.", rich_help_panel=_SEARCH)
    ] = 0.0,
    slowest: Annotated[bool, typer.Option("--slowest", help="The slowest first.", rich_help_panel=_SEARCH)] = False,
    failed: Annotated[bool, typer.Option("--failed", help="That failed.", rich_help_panel=_SEARCH)] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="List so many.", rich_help_panel=_SEARCH)] = LISTED,
    database: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The span store; default: that of `headrace up`.")
    ] = None,
    config: Config = None,
) -> None:
    """Draw where a request's time went: one row a span, over all services; or search for requests."""
    now = datetime.now().astimezone()
    wanted = Search(
        since_ns=unix_ns(moment(since, now, "since")) if since else 0,
        until_ns=unix_ns(moment(until, now, "until")) if until else 0,
        qos=qos or "",
        tenant=tenant,
        slower_than_ms=slow,
        failed=failed,
        slowest=slowest,
        limit=limit,
    )
    listing = listing or wanted != Search(limit=limit)
    if (identifier is not None) + last + listing + (batch is not None) > 1:
        raise InvalidRequest("say one of ID, --last, --batch and a search", field="id")
    if other is not None and (listing or batch is not None or json_file is not None):
        raise InvalidRequest("--with goes with ID or --last alone", field="with")
    console = Console()
    with open_reader(database or default_database(load_settings(config).models.home)) as reader:
        if listing:
            console.print(requests_table(search(reader, wanted)))
            return
        if batch is not None:
            console.print(batch_view(*batch_of(reader, batch)))
            return
        spans = reader.last() if identifier is None else reader.find(identifier)
        compared = reader.find(other) if other is not None else None
    if compared is not None:
        console.print(side_by_side(spans, compared))
    elif json_file is not None:
        _write(json_file, spans)
        console.print(f"{len(spans)} spans in {json_file}", highlight=False, markup=False)
    else:
        console.print(render(spans, console.width))


def _write(json_file: Path, spans: list[Span]) -> None:
    try:
        json_file.write_text(to_otlp_json(spans), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot write {json_file}: {error.strerror}", field="json") from error
