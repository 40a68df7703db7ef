"""`headrace certs` and `headrace up --tls` as a user has them; what a service says of an open port without TLS."""

import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.cli.main import app
from headrace.client import Client, Tls
from headrace.core.errors import HeadraceError, Unavailable
from headrace.core.role import Role
from headrace.models import reference


def _end_to_end() -> Any:
    name = "security_tests_e2e"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "e2e" / "conftest.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def test_a_suite_of_processes_with_certificates_made_here(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    made = CliRunner().invoke(app, ["certs", str(folder)])
    assert made.exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"ca.crt"} | {f"{r}.{e}" for r in Role for e in ("crt", "key")}
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}
    reference.install(tmp_path)
    with _end_to_end().starting(tmp_path) as start:
        gateway = start("--tls", str(folder), "--preprocess", "remote").ready()["gateway"]
        with Client(gateway, tls=Tls(dir=folder)) as client:
            assert client.generate(reference.NAME, "hello", max_tokens=2).usage.completion_tokens == 2
        with Client(gateway, retries=0) as client, pytest.raises(Unavailable):
            client.models()


def test_a_domain_that_is_none(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["certs", str(tmp_path), "--domain", "No Domain"])
    assert isinstance(refused.exception, HeadraceError)
    assert refused.exception.field == "domain"


@pytest.mark.parametrize(("listen", "warned"), [("0.0.0.0:0", True), ("127.0.0.1:0", False), ("[::1]:0", False)])
async def test_an_open_port_without_tls_is_warned_of(
    listen: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with serve(listen, TransportSettings(drain_s=1), lambda server: None, []):
            pass
    assert ("without TLS" in caplog.text) is warned
