"""`headrace keys`: API keys of tenants. The gateway's parts are imported when a key is made."""

import re
from typing import Annotated

import typer

from headrace.core.errors import InvalidRequest

ApiKey = Annotated[
    str | None, typer.Option(envvar="HEADRACE_API_KEY", metavar="KEY", help="Who asks, where the gateway wants keys.")
]
"""The option of every command that calls a gateway."""

app = typer.Typer(no_args_is_help=True, help="API keys of tenants.")


@app.callback()
def _group() -> None: ...


@app.command()
def new(name: Annotated[str, typer.Argument(help="The tenant.")]) -> None:
    """Print a new key, which is shown only now, and the lines that let it in."""
    from headrace.gateway.codec import TENANT_NAME
    from headrace.gateway.tenants.key import digest, new_key

    if not re.fullmatch(TENANT_NAME, name):
        raise InvalidRequest(f"{name!r} is no plain name", field="name", limit="1..64 of A-Z a-z 0-9 . _ -")
    key = new_key()
    table = name if "." not in name else f'"{name}"'
    print(f'{key}\n\n# in the file that tenants.keys_file names:\n[tenant.{table}]\nkey_sha256 = ["{digest(key)}"]')
