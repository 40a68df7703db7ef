"""`headrace scheduler set|settings|status` against a running scheduler, and `headrace scheduler` itself."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.trace import NoOpTracer

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from headrace.chassis.channel import open_channel
from headrace.chassis.config import SchedulerSettings, Settings, TransportSettings
from headrace.cli.scheduler import parse_changes
from headrace.core.errors import InvalidRequest
from headrace.scheduler import app
from headrace.scheduler.policy.limits import LIVE

PATIENCE_S = 60


def headrace(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def rows(shown: "subprocess.CompletedProcess[str]") -> list[list[str]]:
    assert (shown.returncode, shown.stderr) == (0, "")
    return [line.split() for line in shown.stdout.splitlines()]


@pytest.fixture
def address() -> Iterator[str]:
    """A scheduler with an executor enlisted, in a thread of its own: the commands block."""
    bound: list[str] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    leave = asyncio.Event()

    async def serve() -> None:
        scheduler = SchedulerSettings(listen="127.0.0.1:0", lease_ms=60_000)
        transport = TransportSettings(drain_s=5)
        async with (
            app.start(Settings(scheduler=scheduler, transport=transport), NoOpTracer()) as handle,
            open_channel(handle.address, transport) as channel,
        ):
            call = SchedulerServiceStub(channel).Enlist()
            enlistment = pb.Enlistment(
                executor_id="e1\x1b[2J",
                address="e1:1",
                num_slots=4,
                num_blocks=8,
                block_tokens=16,
                running_request_ids=["r1"],
                models=[pb.LoadedModel(name="m", context_tokens=64)],
            )
            await call.write(pb.EnlistRequest(enlistment=enlistment))
            await call.read()
            steps = [pb.StepSample(num_decodes=1, duration_us=9000)] * 7
            await call.write(pb.EnlistRequest(report=pb.ExecutorReport(draining=True, steps=steps)))
            await call.read()
            bound.append(handle.address)
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield bound[0]
    loop.call_soon_threadsafe(leave.set)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    loop.close()


def test_settings_are_set_and_shown(address: str) -> None:
    shown = rows(headrace("scheduler", "settings", "--address", address))
    assert shown[0] == ["setting", "value"]
    assert {row[0] for row in shown[1:]} == set(LIVE)
    assert ["order", "qos"] in shown
    changed = rows(headrace("scheduler", "set", "order=fcfs", "batch_share=0.25", "--address", address))
    assert changed[1:] == [["order", "fcfs"], ["batch_share", "0.25"]]
    # where the settings say that the scheduler listens is where it is looked for
    again = rows(headrace("scheduler", "settings", HEADRACE_SCHEDULER__LISTEN=address))
    assert [row for row in again if row not in shown] == [["batch_share", "0.25"], ["order", "fcfs"]]


def test_a_bad_value_is_one_line_and_changes_nothing(address: str, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(f'[scheduler]\nlisten = "{address}"\n')
    before = rows(headrace("scheduler", "--config", str(config), "settings"))
    shown = headrace("scheduler", "--config", str(config), "set", "order=fcfs", "batch_share=7", "quota_load=none")
    assert (shown.returncode, shown.stdout) == (1, "")
    [line] = shown.stderr.splitlines()
    assert line == "error: batch_share: 7 is outside 0.01..0.99; quota_load: 'none' is not a number (float)"
    assert rows(headrace("scheduler", "--config", str(config), "settings")) == before


def test_status_shows_queues_executors_and_what_was_learned(address: str) -> None:
    shown = rows(headrace("scheduler", "status", "--address", address))
    for row in (
        ["realtime", "0", "0"],
        ["normal", "0", "0"],
        ["batch", "0", "0"],
        ["running", "1"],
        ["displaced", "now", "0"],
        ["submitted", "0"],
        ["e1\ufffd[2J", "e1:1", "1/4", "2/8", "25%", "yes"],
    ):
        assert row in shown, shown
    assert any(row[0] == "m" and row[-1] == "7" for row in shown if row)


@pytest.mark.parametrize("command", [["set", "order=qos"], ["settings"], ["status"]])
def test_nobody_listening_is_one_line(command: list[str]) -> None:
    shown = headrace("scheduler", *command, "--address", "127.0.0.1:1")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.splitlines() == ["error: no scheduler answers at 127.0.0.1:1"]


def test_changes_must_name_something_once() -> None:
    assert parse_changes(["order=qos", "x=a=b", "y="]) == {"order": "qos", "x": "a=b", "y": ""}
    faults = {("order",): "'order' is not", ("=qos",): "'=qos' is not", ("order=qos", "order=fcfs"): "order is given"}
    for wrong, fault in faults.items():
        with pytest.raises(InvalidRequest, match=fault):
            parse_changes(list(wrong))


def test_without_a_command_it_serves_and_answers_them(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[scheduler]\nlisten = "127.0.0.1:0"\norder = "strict"\n')
    arguments = [sys.executable, "-m", "headrace.cli.main", "scheduler", "--config", str(config)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = _address_in(process.stderr.readline if process.stderr else str)
            assert ["order", "strict"] in rows(headrace("scheduler", "settings", "--address", address))
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def _address_in(read_line: Callable[[], str]) -> str:
    while line := read_line():
        if found := re.search(r"scheduler listens on (127\.0\.0\.1:\d+)", line):
            return found[1]
    raise AssertionError("it ended before it listened")
