"""`headrace results`: answers that went on after their SLA: which there are, what they say, and an end to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.chassis.config import load_settings
from headrace.cli.keys import ApiKey
from headrace.cli.reach import reaching, tls
from headrace.cli.waterfall import printable
from headrace.client import AsyncClient, FinishReason, Piece, Result
from headrace.core.role import Role

app = typer.Typer(no_args_is_help=True, help="Answers that went on after their SLA.")

Handle = Annotated[str, typer.Argument(help="As a partial answer ends with, or as listed.")]
Tenant = Annotated[str | None, typer.Option(help="Whose results; default: those of who names no tenant.")]
Opens = AbstractAsyncContextManager[AsyncClient]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The gateway; default: as set.")]


@app.command(name="list")
def list_(tenant: Tenant = None, address: Address = None, api_key: ApiKey = None) -> None:
    """The tenant's results, newest first."""
    Console().print(results_table(asyncio.run(_list(_client(address, tenant, api_key)))))


@app.command()
def attach(
    handle: Handle,
    offset: Annotated[int, typer.Option(min=0, help="Pieces that you have seen already.")] = 0,
    tenant: Tenant = None,
    address: Address = None,
    api_key: ApiKey = None,
) -> None:
    """See an answer, as it is made if it still is."""
    asyncio.run(_attach(_client(address, tenant, api_key), handle, offset))


@app.command()
def cancel(handle: Handle, tenant: Tenant = None, address: Address = None, api_key: ApiKey = None) -> None:
    """End an answer and drop what is stored of it."""
    asyncio.run(_cancel(_client(address, tenant, api_key), handle))


def results_table(results: list[Result]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("handle", no_wrap=True)  # whole, to be copied
    for heading in ("state", "model", "request"):
        table.add_column(heading, overflow="fold")
    for heading in ("tokens", "age s", "expires in s"):
        table.add_column(heading, justify="right")
    for each in results:
        expires = "" if each.expires_s is None else f"{each.expires_s:,.0f}"
        table.add_row(
            Text(printable(each.handle)),
            each.state.name.lower(),
            Text(printable(each.model)),
            Text(printable(each.request_id)),
            f"{each.num_tokens:,}",
            f"{each.age_s:,.0f}",
            expires,
        )
    return table


@asynccontextmanager
async def _client(address: str | None, tenant: str | None, api_key: str | None) -> AsyncIterator[AsyncClient]:
    """Says how to start a suite where nobody listens."""
    where = address or load_settings().gateway.listen
    async with AsyncClient(where, tenant=tenant, api_key=api_key, tls=tls(Role.CLIENT)) as client:
        with reaching(where):
            yield client


async def _list(opening: Opens) -> list[Result]:
    async with opening as client:
        return await client.list_results()


async def _attach(opening: Opens, handle: str, offset: int) -> None:
    """Text to standard output, how the answer ended to standard error."""
    last: Piece | None = None
    try:
        async with opening as client:
            async for last in client.attach_result(handle, offset):
                print(last.text, end="", flush=True)
    finally:
        if last is not None:
            print(flush=True)
    if last is not None and last.finish_reason is not FinishReason.NONE:
        Console(stderr=True, highlight=False).print(last.finish_reason.name.lower(), style="dim")


async def _cancel(opening: Opens, handle: str) -> None:
    async with opening as client:
        await client.cancel_result(handle)
