"""`headrace certs`: certificates for all roles of a suite on one machine, by an authority that is then forgotten."""

import os
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from headrace.chassis.certificates import LOOK_S
from headrace.core.errors import ConfigError, InvalidRequest
from headrace.core.role import Role

LOOPBACK = ("localhost", "127.0.0.1", "::1")
DOMAIN = r"[a-z0-9-]+(\.[a-z0-9-]+)*"
END = b"-----END CERTIFICATE-----\n"
KNOWN_AFTER_S = 3 * LOOK_S
"""Every process has seen a change by then."""


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Gets ca.crt, and ROLE.crt and ROLE.key of each role.")],
    host: Annotated[
        list[str] | None, typer.Option(help="A further name or address of this machine; may be given several times.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 90,
    domain: Annotated[str, typer.Option(help="As transport.tls.domain.")] = "headrace",
) -> None:
    """Make certificates for `headrace up --tls DIR`, or in a folder that has some, new ones in their place, which a
    running suite takes over without a break. The authority's key is not kept."""
    if not re.fullmatch(DOMAIN, domain):
        raise InvalidRequest(f"{domain!r} is no domain", field="domain", limit="names of a-z 0-9 - with dots between")
    issue(folder, [*LOOPBACK, *(host or ())], days, domain)
    print(f"headrace up --tls {folder}\nfor commands: export HEADRACE_TRANSPORT__TLS__DIR={folder}")


def issue(folder: Path, hosts: Sequence[str], days: int, domain: str) -> None:
    """Writes all of them. Where there were some before, everybody first learns whom to trust from now on."""
    files = made(hosts, days, domain)
    before = (folder / "ca.crt").read_bytes() if (folder / "ca.crt").exists() else b""
    replace(folder, "ca.crt", files.pop("ca.crt") + before[: before.find(END) + len(END)])  # the newest of the old ones
    if before:
        time.sleep(KNOWN_AFTER_S)
    for name, content in files.items():
        replace(folder, name, content)


def made(hosts: Sequence[str], days: int, domain: str) -> dict[str, bytes]:
    """Contents by file name. Raises ConfigError where the library for it is not installed."""
    try:
        from headrace.cli.authority import Authority
    except ImportError as error:
        raise ConfigError(f"headrace certs: pip install 'headrace[certs]' ({error})") from error
    authority, ends = Authority(f"headrace {domain}", days), datetime.now(UTC) + timedelta(days=days)
    issued = {role: authority.issue(role, domain, hosts, ends) for role in Role}
    keys = {f"{role}.key": each.key for role, each in issued.items()}
    return keys | {f"{role}.crt": each.certificate for role, each in issued.items()} | {"ca.crt": authority.pem}


def replace(folder: Path, name: str, content: bytes) -> None:
    """Writes a file that its owner alone may read, whole or not at all. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = folder / f".{name}.new"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        partial.replace(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder / name}: {error.strerror}") from error
