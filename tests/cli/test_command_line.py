"""The `headrace` command: what it lists, how it fails."""

import subprocess
import sys
from importlib.metadata import version

import grpc
import pytest
from typer.testing import CliRunner

from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.chassis.status import from_rpc_error
from headrace.cli.main import COMMANDS, app
from headrace.cli.reach import reaching
from headrace.core.errors import Unavailable


def headrace(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments], capture_output=True, text=True, timeout=60
    )


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert all(f" {name} " in shown.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], prog_name="headrace")
    assert shown.exit_code == 0
    assert f"Usage: headrace {name}" in shown.output


def test_version_is_that_of_the_distribution() -> None:
    assert CliRunner().invoke(app, ["version"]).output.strip() == version("headrace")


def test_a_command_loads_only_what_it_needs() -> None:
    code = "import sys; from headrace.cli.main import version; version(); print('grpc' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "False"


def test_nobody_listening_is_one_line_with_what_to_do() -> None:
    shown = headrace("generate", "Hello", "--address", "127.0.0.1:1")
    assert shown.returncode == 1
    assert shown.stderr.splitlines() == ["error: nothing answers at 127.0.0.1:1; start a suite with: headrace up"]


async def ask(address: str, channel: grpc.aio.Channel) -> None:
    with reaching(address):
        try:
            await channel.unary_unary("/s/fail")(b"")
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


async def test_what_the_gateway_says_is_told_as_it_is() -> None:
    async def fail(request: bytes, context: object) -> bytes:
        raise Unavailable("the scheduler has been away for 5 s")

    handler = grpc.method_handlers_generic_handler("s", {"fail": grpc.unary_unary_rpc_method_handler(fail)})
    transport = TransportSettings()
    async with (
        serve("127.0.0.1:0", transport, lambda server: server.add_generic_rpc_handlers((handler,)), []) as server,
        open_channel(server.address, transport) as channel,
    ):
        with pytest.raises(Unavailable, match="the scheduler has been away"):
            await ask(server.address, channel)


def test_wrong_settings_are_all_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = tmp_path_factory.mktemp("config") / "headrace.toml"
    config.write_text('[gateway]\nlisten = "nowhere"\n[executor]\nnum_slots = -1\n')
    shown = headrace("up", "--config", str(config))
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    assert "gateway.listen" in shown.stderr
    assert "executor.num_slots" in shown.stderr


def test_a_config_file_that_is_not_there() -> None:
    shown = headrace("gateway", "--config", "nowhere.toml")
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: nowhere.toml")
    assert "Traceback" not in shown.stderr
