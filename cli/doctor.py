"""`headrace doctor`: watches a running suite for a few seconds and names what holds it up, with figures."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.diagnosis import diagnose
from headrace.cli.scraping import At, FromPrometheus, MetricsPort, scraping, watched
from headrace.cli.services import Config


def doctor(
    metrics_port: MetricsPort = None,
    at: At = None,
    prometheus: FromPrometheus = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=600, help="How long to watch.")] = 5.0,
    config: Config = None,
) -> None:
    """Name the bottleneck of a running suite, with evidence and the next thing to do."""
    scrape, console = scraping(metrics_port, at, prometheus, config), Console(highlight=False)
    findings = diagnose(asyncio.run(watched(scrape, seconds)))
    for finding in findings:
        console.print(f"[bold]{finding.name}[/]: {finding.evidence}\n  {finding.next_step}")
    if not findings:
        console.print("nothing wrong")
