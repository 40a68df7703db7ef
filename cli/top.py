"""`headrace top`: a running suite's queues, batches and devices, drawn anew every other second."""

import asyncio
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from headrace.cli.figures import Figures
from headrace.cli.scraping import At, FromPrometheus, MetricsPort, Scrape, scraping
from headrace.cli.services import Config

CLASSES = ("realtime", "normal", "batch")


def top(
    metrics_port: MetricsPort = None,
    at: At = None,
    prometheus: FromPrometheus = "",
    seconds: Annotated[float, typer.Option("--every", min=0.5, max=60, help="Seconds between two looks.")] = 2.0,
    config: Config = None,
) -> None:
    """Watch a running suite until Ctrl-C."""
    asyncio.run(_watch(scraping(metrics_port, at, prometheus, config), seconds))


async def _watch(scrape: Scrape, seconds: float) -> None:
    before = await asyncio.to_thread(scrape)
    with Live(view(Figures(before, before, seconds)), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(seconds)
            after = await asyncio.to_thread(scrape)
            live.update(view(Figures(before, after, seconds)), refresh=True)
            before = after


def view(f: Figures) -> Group:
    """Two tables: by class, and of the devices together."""
    classes = Table("class", "waiting", "oldest s", "wait ms", "first token ms", "inter-token ms", "tokens/s", box=None)
    for name in CLASSES:
        labels = {"class": name}
        classes.add_row(
            name,
            f"{f.level('queue_requests', **labels):,.0f}",
            f"{f.level('queue_age_seconds', **labels):,.1f}",
            *(f"{f.mean(each, **labels) * 1000:,.0f}" for each in ("queue_wait_seconds", "ttft_seconds")),
            f"{f.mean('inter_token_seconds', **labels) * 1000:,.1f}",
            f"{f.rate('output_tokens_total', **labels):,.0f}",
        )
    devices = Table("executors", "slots", "step ms", "rows", "busy", "KV held", "KV cached", "batches/s", box=None)
    devices.add_row(
        f"{f.level('executors', state='ready'):.0f}",
        f"{f.level('slots_in_use'):.0f} of {f.level('slots'):.0f}",
        f"{f.mean('step_seconds') * 1000:,.1f}",
        f"{f.mean('step_rows'):,.1f}",
        f"{f.rate('step_seconds_sum'):.0%}",
        *(f"{f.level('kv_bytes', state=state) / 2**20:,.0f} MiB" for state in ("held", "cached")),
        f"{f.rate('batches_total'):,.1f}",
    )
    return Group(classes, "", devices)
