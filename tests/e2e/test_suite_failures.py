"""What goes wrong with a suite: one line that says what, nothing left running, an exit code that is not 0."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.standalone.services import Service

BOUND_S = 60


def errors(lines: list[str]) -> list[str]:
    assert not any("Traceback" in line for line in lines), lines
    return [line for line in lines if line.startswith("error: ")]


@pytest.fixture
def port_in_use() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("service", "options"),
    [("scheduler", ()), ("executor", ()), ("gateway", ("--single",))],
    ids=["scheduler", "executor", "gateway-single"],
)
def test_a_port_in_use_is_named(
    start_up: Callable[..., Any], port_in_use: str, service: str, options: tuple[str, ...]
) -> None:
    running = start_up(*options, **{f"HEADRACE_{service.upper()}__LISTEN": port_in_use})
    code, lines = running.ended()
    assert code == 1
    (error,) = errors(lines)
    assert f"cannot listen on {port_in_use}" in error
    assert options or service in error  # a process says whose it is; the address does anyway
    assert running.services() == {}


def test_a_model_that_is_not_installed_is_named_with_what_to_do(start_up: Callable[..., Any], tmp_path: Path) -> None:
    code, lines = start_up("--model", "nosuch").ended()
    assert code == 1
    assert lines == ["error: model 'nosuch' is not installed (installed: reference); run: headrace models add nosuch"]
    assert not list((tmp_path / "run").glob("*/*.log"))


def test_a_broken_model_stops_the_suite(start_up: Callable[..., Any], tmp_path: Path) -> None:
    manifest = tmp_path / "models" / "reference" / "model.toml"
    manifest.write_text(manifest.read_text().replace('"decoder"', '"encoder"'))
    running = start_up()
    code, lines = running.ended()
    assert code == 1
    assert errors(lines) == ["error: executor: executor.models: reference is no decoder"]
    assert running.services() == {}


@pytest.mark.parametrize("service", [Service.EXECUTOR, Service.SCHEDULER])
def test_a_child_that_dies_ends_the_suite(start_up: Callable[..., Any], service: Service) -> None:
    running = start_up()
    running.ready()
    children = running.services()
    os.kill(children[service], signal.SIGKILL)
    code, lines = running.ended()
    assert code == 1
    (error,) = errors(lines)
    assert error.startswith(f"error: {service} was killed by SIGKILL")
    assert not any(alive(pid) for pid in children.values())


def test_children_leave_when_the_supervisor_is_killed(start_up: Callable[..., Any]) -> None:
    running = start_up()
    running.ready()
    children = running.services()
    assert len(children) == 3
    running.process.kill()
    give_up = time.monotonic() + BOUND_S
    while any(alive(pid) for pid in children.values()):
        assert time.monotonic() < give_up, "children outlived their supervisor"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """False for a process that has ended, waited for or not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
