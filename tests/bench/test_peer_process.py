"""A driver over its pipe: real processes, run by this interpreter, of a peer that counts."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import headrace
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.peers import running
from headrace.benchmarks.peers.environment import Environment, Recipe, last_line, prepare, run
from headrace.benchmarks.peers.process import Driver, start_driver
from headrace.core.errors import Unavailable
from headrace.core.model import ModelInfo
from headrace.models.repository import ModelEntry

COUNTING_PEER = """
import sys
from contextlib import asynccontextmanager
from headrace.benchmarks.drivers.serve import main

@asynccontextmanager
async def open_peer(options):
    print("noise on standard output")
    if options.get("fail"):
        sys.exit("no such weights")
    async def stream(prompt, max_tokens):
        if prompt == [13]:
            raise ValueError("unlucky")
        yield 1
        yield max_tokens - 1
    yield stream

main(open_peer, ())
"""


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    (tmp_path / "counting.py").write_text(COUNTING_PEER, encoding="utf-8")
    python = tmp_path / "python"
    (tmp_path / "import").mkdir()
    python.write_text(
        f'#!/bin/sh\nexec env PYTHONPATH="$PYTHONPATH:{tmp_path}" {sys.executable} "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    (tmp_path / "import" / "headrace").symlink_to(Path(headrace.__file__).parent)
    return Environment(tmp_path, python, tmp_path / "import")


@pytest.fixture
async def driver(environment: Environment, tmp_path: Path) -> AsyncIterator[Driver]:
    async with start_driver("counting", "counting", environment, {}, tmp_path / "log") as started:
        yield started


async def test_it_answers_again_and_again_though_it_prints_noise(driver: Driver) -> None:
    assert driver.ready["options"] == {}
    for _ in range(2):
        result = await driver.ask({"cmd": "single", "prompts": [[1], [2]], "max_tokens": 5}, 30)
        assert [reply["num_tokens"] for reply in result["replies"]] == [5, 5]


async def test_a_failed_measurement_is_a_reason_and_the_driver_lives_on(driver: Driver) -> None:
    with pytest.raises(Unavailable, match="unlucky"):
        await driver.ask({"cmd": "single", "prompts": [[13]], "max_tokens": 5}, 30)
    assert "replies" in await driver.ask({"cmd": "single", "prompts": [[1]], "max_tokens": 5}, 30)


async def test_a_driver_that_does_not_start_says_why(environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no such weights"):
        async with start_driver("counting", "counting", environment, {"fail": True}, tmp_path / "log"):
            pass


async def test_a_driver_ends_with_its_block(environment: Environment, tmp_path: Path) -> None:
    async with start_driver("counting", "counting", environment, {}, tmp_path / "log") as started:
        pid = started._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_peer_that_cannot_be_installed_is_missing_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Environment:
        raise Unavailable("pip failed: no matching distribution")

    monkeypatch.setattr(running, "prepare", fails)
    info = ModelInfo("tiny", "decoder", "d", 512, 100, (0,))
    lab = Lab(tmp_path, ModelEntry(info, tmp_path, "", "", ""), print, peers=("vllm",))
    async with running.started_peers(lab, ("vllm", "llamacpp"), 64) as peers:
        assert peers.missing == {"vllm": "pip failed: no matching distribution", "llamacpp": "left out by --peers"}
        assert not peers.running


def test_an_environment_of_another_recipe_is_made_anew_and_then_kept(tmp_path: Path) -> None:
    stale = tmp_path / "empty" / "stale"
    stale.parent.mkdir()
    stale.touch()
    stale.with_name("recipe.txt").write_text("another recipe", encoding="utf-8")
    said: list[str] = []
    first = prepare(Recipe("empty", ()), tmp_path, said.append)
    assert not stale.exists()
    assert len(said) == 1
    stale.touch()
    assert prepare(Recipe("empty", ()), tmp_path, said.append) == first
    assert len(said) == 1, "nothing is made a second time"
    assert stale.exists()
    script = "import headrace.benchmarks.closed_loop as c; print(c.__file__)"
    run((str(first.python), "-c", script), tmp_path / "out", first.variables())
    assert "closed_loop.py" in last_line(tmp_path / "out")


def test_a_failing_command_names_the_last_line_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="all is lost"):
        run(("sh", "-c", "echo all is lost; exit 3"), tmp_path / "log")
