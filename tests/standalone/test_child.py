"""A service's process under the supervisor: what it reports, and what becomes of one that does not leave."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from headrace.standalone.services import Service
from headrace.standalone.supervisor import MAX_RESTARTS, TAIL_LINES, Child, ServiceFailed


async def child(folder: Path, code: str) -> Child:
    log = folder / "executor.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE, stderr=stderr)
    return Child(Service.EXECUTOR, process, log)


async def test_it_says_where_it_listens_and_then_what_failed(tmp_path: Path) -> None:
    one = await child(
        tmp_path, """print('{"address": "127.0.0.1:5"}'); print('{"error": "the device is gone"}'); exit(1)"""
    )
    with pytest.raises(ServiceFailed, match=r"^executor: the device is gone$") as failed:
        await one.watch()
    assert one.address.result() == "127.0.0.1:5"
    assert failed.value.log_tail == ""


async def test_a_crash_comes_with_the_end_of_the_log(tmp_path: Path) -> None:
    one = await child(tmp_path, "import sys; [print(f'line {n}', file=sys.stderr) for n in range(99)]; sys.exit(3)")
    with pytest.raises(ServiceFailed, match="executor ended with code 3") as failed:
        await one.watch()
    assert str(one.log) in failed.value.message
    assert failed.value.log_tail.splitlines() == [f"line {n}" for n in range(99 - TAIL_LINES, 99)]


async def test_one_that_does_not_leave_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(600)"
    )
    one = await child(tmp_path, code)
    assert one.process.stdout is not None
    await one.process.stdout.readline()
    await one.stop(bound_s=0.2)
    assert one.process.returncode == -9


async def test_stopping_one_that_has_ended_is_nothing(tmp_path: Path) -> None:
    one = await child(tmp_path, "")
    await one.process.wait()
    await one.stop(bound_s=10)
    assert one.process.returncode == 0


async def test_one_that_is_to_be_started_again_is_so_at_its_address_and_not_for_ever(tmp_path: Path) -> None:
    started: list[str] = []

    async def again(address: str) -> asyncio.subprocess.Process:
        started.append(address)
        return (await child(tmp_path, "exit(4)")).process

    first = await child(tmp_path, """print('{"address": "127.0.0.1:5"}')""")
    one = Child(Service.EXECUTOR, first.process, first.log, again)
    with pytest.raises(ServiceFailed, match="executor ended with code 4"):
        await one.watch()
    assert started == ["127.0.0.1:5"] * MAX_RESTARTS


async def test_one_that_never_listened_is_not_started_again(tmp_path: Path) -> None:
    async def again(address: str) -> asyncio.subprocess.Process:
        raise AssertionError

    first = await child(tmp_path, "exit(4)")
    with pytest.raises(ServiceFailed, match="executor ended with code 4"):
        await Child(Service.EXECUTOR, first.process, first.log, again).watch()
