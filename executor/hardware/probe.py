"""Asks the machine: runs vendors' tools and reads the system's files, and says nothing of what they mean."""

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError
from headrace.executor.hardware import gaudi, nvidia
from headrace.executor.hardware.detect import CPU_FILES, MAKERS
from headrace.executor.hardware.fabric import FABRIC_FILES

TOOL_TIMEOUT_S = 20.0  # nvidia-smi takes seconds while a driver wakes up
TOOLS: dict[str, tuple[str, ...]] = {
    "nvidia-smi.csv": ("nvidia-smi", f"--query-gpu={','.join(nvidia.QUERY)}", "--format=csv"),
    "amd-smi.json": ("amd-smi", "static", "--asic", "--vram", "--driver", "--json"),
    "rocm-smi.json": ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json"),
    "hl-smi.csv": ("hl-smi", "-Q", ",".join(gaudi.QUERY), "-f", "csv"),
    "neuron-ls.json": ("neuron-ls", "--json-output"),
}
"""Commands by the file name that a recording of their output has."""
_CGROUP = Path("/sys/fs/cgroup")


def probe(tools: dict[str, tuple[str, ...]] = TOOLS) -> dict[str, str]:
    """Outputs by file name, of this machine; a tool that is not installed is left out."""
    outputs = cpu_outputs()
    answers: dict[str, Callable[[], str | None]] = {"nvml.json": ask_nvml}
    answers |= {name: lambda command=command: run_tool(command) for name, command in tools.items()}  # type: ignore[misc]
    for makers_tools in MAKERS:
        for name, _ in makers_tools:
            answer = answers[name]() if name in answers else None
            if answer is not None:
                outputs[name] = answer
                break
    return outputs


def cpu_outputs() -> dict[str, str]:
    """Of the processor alone: no tool is run."""
    status = _read(Path("/proc/self/status"))
    allowed = next((line.partition(":")[2] for line in status.splitlines() if line.startswith("Cpus_allowed_list")), "")
    cpu_max = [_read(folder / "cpu.max") for folder in _cgroups()] or [_quota_of_version_1()]
    memory_max = [_read(folder / "memory.max") for folder in _cgroups()]
    memory_max.append(_read(_CGROUP / "memory" / "memory.limit_in_bytes"))
    texts = (
        _read(Path("/proc/cpuinfo")),
        _read(Path("/proc/meminfo")),
        allowed.strip(),
        *map(_lines, (cpu_max, memory_max)),
    )
    return dict(zip(CPU_FILES, texts, strict=True))


def recorded(folder: Path) -> dict[str, str]:
    """Outputs as `record` wrote them. Raises ConfigError where the folder has none."""
    names = {*CPU_FILES, *FABRIC_FILES, *(name for tools in MAKERS for name, _ in tools)}
    try:
        outputs = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name in names}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder}: {error}") from error
    if not outputs:
        raise ConfigError(f"{folder} holds no recording: none of {', '.join(sorted(names))}")
    return outputs


def record(outputs: dict[str, str], folder: Path) -> None:
    """Writes outputs, one file each. Raises ConfigError where it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in outputs.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: {error}") from error


def run_tool(command: tuple[str, ...]) -> str | None:
    """What it prints, or what it complains of; None where it is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (FileNotFoundError, PermissionError):
        return None
    except subprocess.TimeoutExpired:
        return f"no answer within {TOOL_TIMEOUT_S:g} s"
    return done.stdout if done.returncode == 0 and done.stdout.strip() else done.stdout or done.stderr


def ask_nvml() -> str | None:
    """NVML's answers as JSON; None without nvidia-ml-py or a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        devices = [_nvml_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        return json.dumps({"driver_version": _text(pynvml.nvmlSystemGetDriverVersion()), "devices": devices}, indent=1)
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()


def _nvml_device(nvml: Any, index: int) -> dict[str, object]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        mig_mode = nvml.nvmlDeviceGetMigMode(handle)[0]
    except nvml.NVMLError:  # devices that cannot be parted
        mig_mode = 0
    return {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "compute_capability": list(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "memory_total": nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "mig_mode": mig_mode,
    }


def _text(value: str | bytes) -> str:
    """Older releases of nvidia-ml-py give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _cgroups() -> Iterator[Path]:
    """Folders of the cgroups around this process, of version 2, the innermost first."""
    line = next((line for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), None)
    if line is None:
        return
    inner = _CGROUP / line.removeprefix("0::").lstrip("/")
    for folder in (inner, *inner.parents):
        if folder.is_relative_to(_CGROUP) and folder.is_dir():  # a container may see the root only
            yield folder


def _quota_of_version_1() -> str:
    quota, period = (_read(_CGROUP / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return f"{quota} {period}" if quota.isdigit() else ""


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(text.strip() for text in texts if text.strip())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
