"""`headrace doctor`: watches a running suite for a few seconds and names what holds it up, with figures."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.diagnosis import diagnose
from headrace.cli.figures import watched

MetricsPort = Annotated[int, typer.Option("--metrics-port", metavar="N", help="As given to headrace up.")]
DEFAULT_PORT = 9470


def doctor(
    metrics_port: MetricsPort = DEFAULT_PORT,
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, max=600, help="How long to watch.")] = 5.0,
) -> None:
    """Name the bottleneck of a running suite, with evidence and the next thing to do."""
    findings, console = diagnose(asyncio.run(watched(metrics_port, seconds))), Console(highlight=False)
    for finding in findings:
        console.print(f"[bold]{finding.name}[/]: {finding.evidence}\n  {finding.next_step}")
    if not findings:
        console.print("nothing wrong")
