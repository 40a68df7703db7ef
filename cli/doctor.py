"""`headrace doctor`: watches a running suite for a few seconds and names what holds it up, with figures; and of the
requests that began meanwhile the slowest, where their spans are kept on this machine."""

import asyncio
import time
from typing import Annotated

import typer
from rich.console import Console

from headrace.chassis.config import load_settings
from headrace.cli.diagnosis import diagnose
from headrace.cli.scraping import At, FromPrometheus, MetricsPort, scraping, watched
from headrace.cli.services import Config
from headrace.cli.slowest import slowest
from headrace.standalone.spans import default_database


def doctor(
    metrics_port: MetricsPort = None,
    at: At = None,
    prometheus: FromPrometheus = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=600, help="How long to watch.")] = 5.0,
    config: Config = None,
) -> None:
    """Name the bottleneck of a running suite, with evidence and the next thing to do."""
    scrape, console, begin_ns = scraping(metrics_port, at, prometheus, config), Console(highlight=False), time.time_ns()
    findings = diagnose(asyncio.run(watched(scrape, seconds)))
    for finding in findings:
        console.print(f"[bold]{finding.name}[/]: {finding.evidence}\n  {finding.next_step}")
    if not findings:
        console.print("nothing wrong")
    if line := slowest(default_database(load_settings(config).models.home), begin_ns):
        console.print(line, markup=False)
