"""`headrace soak`: a suite of its own under load, its services killed, ended and paused by turns; what must hold."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.benchmarks.soak.run import soak as run
from headrace.chassis.config import load_settings
from headrace.models.repository import Repository


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, max=10_080, help="How long to load and disturb it.")] = 10.0,
    model: Annotated[str, typer.Option(help="An installed decoder.")] = "smollm2",
    workers: Annotated[int, typer.Option(min=1, max=512, help="Callers at once.")] = 24,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 1,
) -> None:
    """Disturb a loaded suite, then check that nothing was lost and nothing is left: exit code 0 where that is so."""
    home, progress = load_settings().models.home, Console(stderr=True, highlight=False)
    Repository(home).get(model)
    checks = asyncio.run(
        run(
            model,
            minutes,
            workers,
            seed,
            home / "run" / "soak.log",
            lambda line: progress.print(line, style="dim", markup=False),
        )
    )
    table = Table("", "holds", "found", box=None)
    for check in checks:
        table.add_row(check.name, "[green]yes[/]" if check.holds else "[red]no[/]", Text(check.found))
    Console().print(table)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)
