"""NVIDIA devices, out of what NVML or nvidia-smi says.

NVML's answers are kept as JSON: {"driver_version", "devices": [{"name", "compute_capability": [major, minor],
"memory_total": bytes, "mig_mode"}]}; see probe.py for the calls.
"""

import csv
import json

from headrace.executor.hardware.device import Device, DeviceKind
from headrace.executor.hardware.unreadable import Unreadable

QUERY = ("index", "name", "compute_cap", "memory.total", "driver_version", "mig.mode.current")
"""What nvidia-smi --query-gpu is asked for."""
MIG = "mig"


def parse_nvml(text: str) -> list[Device]:
    """Raises Unreadable."""
    try:
        answers = json.loads(text)
        driver, found = answers["driver_version"], answers["devices"]
        return [
            Device(
                DeviceKind.CUDA,
                index,
                each["name"],
                "sm_{}{}".format(*each["compute_capability"]),
                int(each["memory_total"]),
                driver,
                frozenset({MIG}) if each.get("mig_mode") else frozenset(),
            )
            for index, each in enumerate(found)
        ]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Unreadable(f"nvml: not as expected ({error!r})") from error


def parse_nvidia_smi(text: str) -> list[Device]:
    """CSV with its header, units in it or not. Raises Unreadable, with the tool's own words where it failed."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise Unreadable("nvidia-smi: no output")
    if not lines[0].startswith("index"):
        raise Unreadable(f"nvidia-smi: {' '.join(lines[0].split())}")
    rows = csv.DictReader(lines, skipinitialspace=True)
    return [_device({(name or "").split(" [")[0]: value or "" for name, value in row.items()}) for row in rows]


def _device(row: dict[str, str]) -> Device:
    major, dot, minor = row.get("compute_cap", "").strip().partition(".")
    if not (dot and major.isdigit() and minor.isdigit()):
        raise Unreadable(f"nvidia-smi: compute_cap of {row.get('name', 'a device')} is {row.get('compute_cap')!r}")
    if not row["index"].strip().isdigit():
        raise Unreadable(f"nvidia-smi: index {row['index']!r} is no number")
    mebibytes = row.get("memory.total", "").split(" ")[0]
    return Device(
        DeviceKind.CUDA,
        int(row["index"]),
        row["name"].strip(),
        f"sm_{major}{minor}",
        int(mebibytes) * 2**20 if mebibytes.isdigit() else 0,  # [N/A] where memory is the machine's
        row.get("driver_version", "").strip(),
        frozenset({MIG}) if row.get("mig.mode.current", "").strip() == "Enabled" else frozenset(),
    )
