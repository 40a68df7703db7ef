"""Certificates made on the spot, and a suite with mTLS on all of its ports."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.chassis.config import Settings, TlsSettings, TransportSettings, load_settings
from headrace.chassis.metrics import Metrics
from headrace.cli.authority import Authority
from headrace.cli.certs import LOOPBACK
from headrace.core.role import Role
from headrace.models import reference
from headrace.standalone.single import running
from headrace.standalone.spans import collector

ANY_PORT = "127.0.0.1:0"
DOMAIN = "headrace"
DAY = timedelta(days=1)


def write_own(
    folder: Path,
    name: str,
    authority: Authority,
    role: Role | None,
    *,
    ends_in: timedelta = DAY,
    domain: str = DOMAIN,
) -> TlsSettings:
    """A certificate of the authority's and its key in the folder; the settings that show it and trust ca.crt there."""
    issued = authority.issue(role, domain, LOOPBACK, datetime.now(UTC) + ends_in)
    (folder / f"{name}.crt").write_bytes(issued.certificate)
    (folder / f"{name}.key").write_bytes(issued.key)
    return TlsSettings(ca=folder / "ca.crt", certificate=folder / f"{name}.crt", key=folder / f"{name}.key")


def everybody(folder: Path, authority: Authority) -> None:
    """Certificates of all roles."""
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(authority.pem)
    for role in Role:
        write_own(folder, role, authority, role)


def transport(folder: Path, role: Role = Role.CLIENT) -> TransportSettings:
    return TransportSettings(drain_s=5, tls=TlsSettings(dir=folder, role=role))


def suite_settings(home: Path, folder: Path, **sections: dict[str, Any]) -> Settings:
    """The reference model behind every service there is, on ports that the system chooses, with TLS."""
    reference.install(home)
    given: dict[str, dict[str, Any]] = {
        "models": {"home": home},
        "transport": {"drain_s": 5, "tls": {"dir": folder}},
        "gateway": {"listen": ANY_PORT, "http_listen": ANY_PORT, "preprocess": ANY_PORT},
        "scheduler": {"listen": ANY_PORT},
        "executor": {"listen": ANY_PORT, "engine": "reference", "models": (reference.NAME,)},
        "encoder": {"model": ""},
        "preprocess": {"listen": ANY_PORT},
    }
    return load_settings(None, {name: given.get(name, {}) | sections.get(name, {}) for name in {**given, **sections}})


@dataclass(frozen=True)
class Secured:
    """The address of each port by name, the folder of everybody's certificates, and who signed them."""

    ports: dict[str, str]
    folder: Path
    authority: Authority


@asynccontextmanager
async def secured(home: Path, folder: Path, authority: Authority) -> AsyncIterator[Secured]:
    async with AsyncExitStack() as stack:
        suite = await stack.enter_async_context(running(suite_settings(home, folder)))
        door: Any = suite.handles["gateway"]
        scraped = Metrics("gateway").serving(ANY_PORT, TlsSettings(dir=folder, role=Role.GATEWAY))
        spans = collector(ANY_PORT, home / "spans.sqlite", transport=transport(folder, Role.COLLECTOR))
        yield Secured(
            {
                **suite.addresses,
                "http": door.http,
                "metrics": await stack.enter_async_context(scraped),
                "collector": await stack.enter_async_context(spans),
            },
            folder,
            authority,
        )


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory, in_thread: Callable[..., Any]) -> Iterator[Secured]:
    """In a thread of its own, for all tests at once."""
    home = tmp_path_factory.mktemp("secured")
    folder, authority = home / "tls", Authority("tests", 1)
    everybody(folder, authority)
    with in_thread(secured(home, folder, authority)) as found:
        yield found


@pytest.fixture(scope="session")
def write() -> Callable[..., TlsSettings]:
    """`write(folder, name, authority, role)`: see `write_own`."""
    return write_own


@pytest.fixture
def authority() -> Authority:
    return Authority("own", 1)


@pytest.fixture
def folder(tmp_path: Path, authority: Authority) -> Path:
    """A folder of certificates for all roles."""
    everybody(tmp_path / "tls", authority)
    return tmp_path / "tls"


@pytest.fixture
def secure() -> Callable[..., TransportSettings]:
    """`secure(folder, role)`: the settings of a process of that role."""
    return transport


@pytest.fixture
def settings_of_suite() -> Callable[..., Settings]:
    """`settings_of_suite(home, folder, **sections)`."""
    return suite_settings
