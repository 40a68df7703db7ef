"""`headrace scheduler`: runs one; its subcommands look into a running one and change its settings."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.chassis.config import load_settings
from headrace.cli.services import Config, run_service
from headrace.cli.waterfall import printable
from headrace.client.scheduler_admin import SchedulerAdmin, SchedulerStatus
from headrace.core.errors import InvalidRequest
from headrace.core.role import Role
from headrace.standalone.services import Service

app = typer.Typer()

Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The scheduler; default: as set.")]


@app.callback(invoke_without_command=True)
def scheduler(context: typer.Context, config: Config = None) -> None:
    """Run a scheduler: who goes when, where and with whom; with a command, look into a running one."""
    if context.invoked_subcommand is None:
        run_service(Service.SCHEDULER, config)
    context.obj = config


@app.command(name="set")
def set_(
    context: typer.Context,
    changes: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="See `headrace scheduler settings`.")],
    address: Address = None,
) -> None:
    """Change settings of a running scheduler, all or none, until it ends."""
    parsed = parse_changes(changes)
    values = asyncio.run(_set(_admin(context, address), parsed))
    Console().print(_settings_table({name: values[name] for name in parsed}))


@app.command()
def settings(context: typer.Context, address: Address = None) -> None:
    """The settings that can change while a scheduler runs, with the values in effect."""
    Console().print(_settings_table(asyncio.run(_settings(_admin(context, address)))))


@app.command()
def status(context: typer.Context, address: Address = None) -> None:
    """What a running scheduler does now: what waits, what runs where, what it has learned."""
    now = asyncio.run(_status(_admin(context, address)))
    console = Console()
    for table in status_tables(now):
        console.print(table)


def parse_changes(changes: list[str]) -> dict[str, str]:
    """NAME=VALUE each. Raises InvalidRequest for another form, and for a name given twice."""
    parsed: dict[str, str] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not (name and equals):
            raise InvalidRequest(f"{change!r} is not NAME=VALUE", field="settings", limit="NAME=VALUE")
        if name in parsed:
            raise InvalidRequest(f"{name} is given twice", field="settings", limit="once a name")
        parsed[name] = value
    return parsed


def status_tables(now: SchedulerStatus) -> list[Table]:
    """What waits by class; what became of the rest; executors; models whose steps have been seen, or batches padded."""
    waiting = _table("class", "waiting", "tokens", left=1)
    for qos, each in now.waiting.items():
        waiting.add_row(qos.name.lower(), f"{each.num_requests:,}", f"{each.num_tokens:,}")
    counts = {"running": now.num_running, "displaced now": now.num_displaced, **now.tally}
    requests = _table("requests", "", left=1)
    for name, count in counts.items():
        requests.add_row("times displaced" if name == "displaced" else name, f"{count:,}")
    executors = _table("executor", "address", "slots", "blocks", "load", "draining", left=2)
    for executor in now.executors:
        executors.add_row(
            Text(printable(executor.executor_id)),
            Text(printable(executor.address)),
            f"{executor.num_slots_in_use}/{executor.num_slots}",
            f"{executor.num_blocks_in_use}/{executor.num_blocks}",
            f"{executor.load:.0%}",
            "yes" if executor.draining else "no",
        )
    models = _table("model", "precision", "on", "ms a step", "a decode", "a prefill token", "steps seen", left=3)
    for model in now.step_models:
        models.add_row(
            Text(printable(model.model)),
            model.precision.name.lower(),
            Text(printable(model.architecture)),
            *(f"{ms:.4g}" for ms in (model.step_ms, model.decode_ms, model.prefill_token_ms)),
            f"{model.num_steps:,}",
        )
    tables = [waiting, requests, executors, models]
    if now.padded_models:
        padded = _table("padded model", "batches", "fill", "rows used", left=1)
        for own in now.padded_models:
            shares = f"{own.fill:.1%}", f"{own.utilisation:.1%}"
            padded.add_row(Text(printable(own.model)), f"{own.batches:,}", *shares)
        tables.append(padded)
    return tables


def _table(*headings: str, left: int) -> Table:
    """The first `left` columns are text, the others figures."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", overflow="fold")
    return table


def _settings_table(values: dict[str, str]) -> Table:
    table = _table("setting", "value", left=1)
    for name, value in values.items():
        table.add_row(Text(printable(name)), Text(printable(value)))
    return table


Opens = Callable[[], SchedulerAdmin]


def _admin(context: typer.Context, address: str | None) -> Opens:
    given = load_settings(context.obj)
    return partial(SchedulerAdmin, address or given.scheduler.listen, given.transport.of(Role.ADMIN))


async def _set(opens: Opens, changes: dict[str, str]) -> dict[str, str]:
    async with opens() as admin:
        return await admin.set(changes)


async def _settings(opens: Opens) -> dict[str, str]:
    async with opens() as admin:
        return await admin.settings()


async def _status(opens: Opens) -> SchedulerStatus:
    async with opens() as admin:
        return await admin.status()
