"""The script for a machine with a device, as far as it can run here: its checks on the fake, that each can fail, and
one clear line where there is no device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.benchmarks.gpu_check import arena, copies, faithful, rooflines
from headrace.benchmarks.gpu_check.check import Check, Failed, Figures, Scale
from headrace.benchmarks.gpu_check.faithful import FAKE_BUSY_BYTES, compare
from headrace.benchmarks.gpu_check.misuses import MISUSES, Misuse, outcome
from headrace.benchmarks.gpu_check.run import BUDGET_S, CHECKS, report, run
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.fake.memory import Memory
from headrace.executor.cuda.fake.values import Limits
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.cuda.streams import Stream
from headrace.executor.memory.cuda_arena import CudaArena

ROOT = Path(__file__).resolve().parents[2]
SMALL = Scale(arena_granules=8, copy_bytes=1 << 20, random_steps=60, busy_bytes=4 << 20)
ON_FAKE: list[Check] = [arena.mapping, arena.fragmentation, arena.pressure, copies.bandwidth, copies.overlap]


def fake() -> FakeCuda:
    return FakeCuda(Limits(memory_bytes=256 << 20, call_s=1e-5))


@pytest.mark.parametrize("check", ON_FAKE, ids=lambda each: each.__name__)
def test_checks_pass_on_the_fake_and_return_all(check: Check) -> None:
    driver = fake()
    with CudaDevice(driver) as device:
        assert check(device, SMALL)
    assert driver.leaks() == []


def test_two_places_hide_the_copies() -> None:
    with CudaDevice(fake()) as device:
        figures = copies.overlap(device, SMALL)
    assert figures["two_places_s"] < figures["one_place_s"]


def test_an_arena_that_gives_nothing_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaArena, "release_range", lambda self, offset, length: length)
    with CudaDevice(fake()) as device, pytest.raises(Failed, match="account is wrong"):
        arena.fragmentation(device, SMALL)


def test_memory_that_does_not_come_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaMemory, "release", lambda self, handle: None)
    for check in (arena.mapping, arena.fragmentation):
        with CudaDevice(fake()) as device, pytest.raises(Failed, match="did not come back"):
            check(device, SMALL)


def test_memory_that_loses_its_bytes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "write", lambda self, address, data: None)
    with CudaDevice(fake()) as device, pytest.raises(Failed, match="lost its bytes"):
        arena.mapping(device, SMALL)


def test_copies_that_do_not_arrive_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "to_device", lambda self, target, source, size: None)
    with CudaDevice(fake()) as device, pytest.raises(Failed, match="other bytes came back"):
        copies.bandwidth(device, SMALL)


def test_a_driver_that_says_what_the_fake_says_is_faithful() -> None:
    figures = compare(SMALL, lambda misuse, busy_bytes: outcome(misuse, FakeCuda(), FAKE_BUSY_BYTES))
    assert len(figures["rows"]) == len(MISUSES)
    assert figures["unfaithful"] == figures["undocumented"] == []


def test_differences_are_told_apart() -> None:
    figures = compare(SMALL, lambda misuse, busy_bytes: "CUDA_SUCCESS")
    assert set(figures["unfaithful"]) == {each.name for each in MISUSES if each.documented}
    assert set(figures["undocumented"]) == {"use before access", "use before map", "unmap in use"}


def test_a_misuse_in_a_process_of_its_own_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert faithful.on_device(MISUSES[0], 1).startswith("ended with ")


def test_checks_go_on_after_one_that_breaks_and_stop_at_the_budget() -> None:
    clock = iter(range(0, 10_000, 100))

    def breaks(device: CudaDevice, scale: Scale) -> Figures:
        raise RuntimeError("two\nlines")

    def wants(device: CudaDevice, scale: Scale) -> Figures:
        raise ImportError("No module named 'torch'")

    def passes(device: CudaDevice, scale: Scale) -> Figures:
        return {"figure": 1.5}

    checks = [("breaks", breaks), ("wants", wants), ("passes", passes)]
    with CudaDevice(fake()) as device:
        outcomes = run(device, SMALL, checks)
        assert [each.passed for each in outcomes] == [False, None, True]
        assert [each.said for each in outcomes] == [
            "RuntimeError: two lines",
            "not tried: No module named 'torch'",
            "",
        ]
        whole = json.loads(json.dumps(report(device, outcomes)))
        assert whole["passed"] is False
        assert whole["device"]["name"] == "Fake device"
        assert whole["checks"][2]["figures"] == {"figure": 1.5}
        late = run(device, SMALL, [("passes", passes)] * 4, now=lambda: float(next(clock)))
        assert [each.passed for each in late] == [True, True, None, None]
        assert f"{BUDGET_S:g} s" in late[-1].said


def test_each_check_has_a_name_of_its_own() -> None:
    assert len({name for name, _ in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(("name", "known"), [("NVIDIA H200", True), ("NVIDIA A100-SXM4-80GB", True), ("new", False)])
def test_shares_are_of_the_data_sheet(name: str, known: bool) -> None:
    figures = rooflines.shares(name, 494.5e12, 2.4e12)
    assert ("share_of_compute" in figures) is known
    if name == "NVIDIA H200":
        assert figures["share_of_compute"] == pytest.approx(0.5)
        assert figures["share_of_bandwidth"] == pytest.approx(0.5)


def test_no_device_is_one_line_and_code_2() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([ROOT / "scripts" / "gpu_check"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpu_check: no CUDA device 0: ")
    assert done.stderr.count("\n") == 1


def test_it_needs_nothing_but_the_bindings() -> None:
    """On the machine there is torch, numpy and cuda-bindings, and none of the suite's own dependencies."""
    code = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('grpc', 'google', 'pydantic', 'opentelemetry', 'prometheus_client'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import headrace.benchmarks.gpu_check.run\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert done.returncode == 0, done.stderr


def test_a_misuse_is_named_once() -> None:
    assert len({each.name for each in MISUSES}) == len(MISUSES)
    assert all(isinstance(each, Misuse) for each in MISUSES)
