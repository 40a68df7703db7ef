"""`headrace top`: a suite's queues, batches and devices, drawn anew every other second; its requests one by one."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.chassis.config import load_settings
from headrace.cli.figures import Figures
from headrace.cli.keys_pressed import keys_pressed
from headrace.cli.scraping import At, FromPrometheus, MetricsPort, Scrape, scraping
from headrace.cli.services import Config
from headrace.cli.top_view import KEYS, Looking, Page, numbered, press, view
from headrace.cli.waterfall import duration, printable, render
from headrace.core.errors import HeadraceError, NotFound
from headrace.standalone.span_reader import open_reader
from headrace.standalone.spans import default_database

LISTED = 9


def top(
    metrics_port: MetricsPort = None,
    at: At = None,
    prometheus: FromPrometheus = "",
    seconds: Annotated[float, typer.Option("--every", min=0.5, max=60, help="Seconds between two looks.")] = 2.0,
    config: Config = None,
) -> None:
    """Watch a running suite until q or Ctrl-C; the requests of `headrace up` one by one."""
    database = default_database(load_settings(config).models.home)
    asyncio.run(_watch(scraping(metrics_port, at, prometheus, config), seconds, database))


async def _watch(scrape: Scrape, seconds: float, database: Path) -> None:
    console, looking = Console(), Looking()
    before = after = await asyncio.to_thread(scrape)
    with keys_pressed() as keys, Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        next_look = asyncio.get_running_loop().time() + seconds
        while not looking.left:
            figures = Figures(before, after, seconds)
            shown = await asyncio.to_thread(_shown, looking, figures, database, console.width)
            live.update(shown, refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_look):
                    looking = press(looking, await keys.get())
                    continue
            before, after = after, await asyncio.to_thread(scrape)
            next_look = asyncio.get_running_loop().time() + seconds


def _shown(looking: Looking, figures: Figures, database: Path, width: int) -> RenderableType:
    if looking.page is Page.SUITE:
        return view(figures, looking.sort)
    try:
        with open_reader(database) as reader:
            calls = reader.recent(LISTED)
            if looking.page is Page.REQUEST:
                if looking.chosen >= len(calls):
                    raise NotFound(f"there are {len(calls)} requests", field="id")
                call = calls[looking.chosen]
                return Group(render(reader.find(call.request_id or call.trace_id), width), "", Text(KEYS, style="dim"))
    except HeadraceError as error:
        return Group(Text(error.message, style="yellow"), "", Text(KEYS, style="dim"))
    return numbered(
        [
            Text(
                printable(f"{call.request_id:<36} {duration(call.duration_ns):>9}  {call.error_message}"),
                style="red" if call.error else "",
            )
            for call in calls
        ]
    )
