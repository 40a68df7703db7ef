"""What a result was measured on: processor, cores, memory, system, versions of our side."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("headrace", "openvino", "grpcio", "protobuf", "numpy", "tokenizers")


def machine() -> dict[str, Any]:
    """Of this machine; the flags are those that decide which kernels run."""
    cpu = _proc("/proc/cpuinfo")
    flags = cpu.get("flags", "").split()
    memory_kb = int(_proc("/proc/meminfo").get("MemTotal", "0 kB").split()[0])
    return {
        "processor": cpu.get("model name", platform.processor()),
        "cores": num_cores(),
        "flags": sorted(flag for flag in flags if flag.startswith(("avx", "amx"))),
        "memory_gib": round(memory_kb / 2**20, 1),
        "system": platform.platform(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def num_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def versions() -> dict[str, str]:
    """Of Python and our packages; those not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _proc(path: str) -> dict[str, str]:
    """The first value of each `key : value` line; nothing where the system has no such file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = [line.partition(":") for line in reversed(lines)]
    return {key.strip(): value.strip() for key, _, value in pairs}
