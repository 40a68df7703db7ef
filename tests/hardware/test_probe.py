"""The machine is asked by running programs and reading files: here programs of ours stand on the path."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.core.errors import ConfigError
from headrace.executor.hardware.defaults import host
from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.nvidia import parse_nvidia_smi, parse_nvml
from headrace.executor.hardware.probe import ask_nvml, probe, record, recorded, run_tool

MACHINES = Path(__file__).parent / "machines"


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the path; a driver that this machine may have is not asked."""
    monkeypatch.setattr("headrace.executor.hardware.probe.ask_nvml", lambda: None)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_tools_are_run_and_this_machine_is_found(tools: Path) -> None:
    tool(tools, "nvidia-smi", f'while read line; do echo "$line"; done < {MACHINES}/t4/nvidia-smi.csv')
    tool(tools, "hl-smi", "echo hl-smi is broken >&2; exit 1")
    machine = detect(probe())
    assert [each.name for each in machine.devices] == ["Tesla T4"]
    assert machine.faults == ("hl-smi: hl-smi is broken",)
    assert machine.cpu.num_threads >= 1


def test_without_tools_there_is_the_processor(tools: Path) -> None:
    outputs = probe()
    assert {name for name in outputs if "smi" in name or "neuron" in name} == set()
    assert detect(outputs).devices == ()


def test_rocm_smi_is_asked_where_there_is_no_amd_smi(tools: Path) -> None:
    tool(tools, "rocm-smi", f'while read line; do echo "$line"; done < {MACHINES}/mi300x-rocm-smi/rocm-smi.json')
    assert [each.architecture for each in detect(probe()).devices] == ["gfx942"]


class NvmlError(Exception):
    pass


def refuse(*_: object) -> int:
    raise NvmlError("Not Supported")


def nvml(**changed: object) -> SimpleNamespace:
    """The calls of nvidia-ml-py, of a driver with one T4; older releases give names as bytes."""
    calls = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "550.127.05",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: b"Tesla T4",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (7, 5),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=16_106_127_360),
        "nvmlDeviceGetMigMode": refuse,
    }
    return SimpleNamespace(**calls | changed)


def test_nvml_tells_what_nvidia_smi_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    answer = ask_nvml()
    assert answer is not None
    smi = (MACHINES / "t4" / "nvidia-smi.csv").read_text(encoding="utf-8")
    assert parse_nvml(answer) == parse_nvidia_smi(smi)


def test_without_a_driver_nvml_says_nothing_and_a_broken_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=refuse))
    assert ask_nvml() is None
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetCount=refuse))
    assert ask_nvml() == "NVML: Not Supported"


def test_a_tool_that_hangs_is_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.executor.hardware.probe.TOOL_TIMEOUT_S", 0.1)
    tool(tools, "nvidia-smi", "while :; do :; done")
    assert run_tool(("nvidia-smi",)) == "no answer within 0.1 s"


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    outputs = recorded(MACHINES / "h100")
    record(outputs, tmp_path / "made" / "here")
    assert recorded(tmp_path / "made" / "here") == outputs


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no recording"):
        recorded(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        record({"cpuinfo": ""}, tmp_path / "file")


def test_this_machine_says_the_same_each_time() -> None:
    assert host() == host()
    assert host().cpu.architecture(2) == host().cpu.architecture(2)


def test_the_command_prints_what_is_chosen_and_why(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "headrace.cli.main", "hardware", "--from", str(MACHINES / "a100-80"))
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "cuda 1: NVIDIA A100-SXM4-80GB, sm_80, 80 GiB; driver 550.127.05" in printed
    assert "published table" in printed
    found = subprocess.run((*command, "--json"), capture_output=True, text=True, timeout=60, check=True).stdout
    first = json.loads(found)["devices"][0]["chosen"]
    assert (first["rows"]["value"], first["align_tokens"]["value"]) == (16, 64)
