"""Intel Gaudi devices, out of `hl-smi -Q index,name,memory.total,driver_version -f csv`."""

import csv

from headrace.executor.hardware.device import Device, DeviceKind
from headrace.executor.hardware.unreadable import Unreadable

QUERY = ("index", "name", "memory.total", "driver_version")
_GENERATIONS = {"HL-20": "gaudi", "HL-22": "gaudi2", "HL-28": "gaudi2", "HL-32": "gaudi3", "HL-33": "gaudi3"}
"""By the beginning of a card's name: HL-205, HL-225, HL-288, HL-325L, HL-338."""


def parse_hl_smi(text: str) -> list[Device]:
    """Raises Unreadable."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("index"):
        raise Unreadable(f"hl-smi: {' '.join(lines[0].split()) if lines else 'no output'}")
    return [
        _device({(name or "").split(" [")[0]: (value or "").strip() for name, value in row.items()})
        for row in csv.DictReader(lines, skipinitialspace=True)
    ]


def _device(row: dict[str, str]) -> Device:
    name = row.get("name", "")
    architecture = _GENERATIONS.get(name[:5], "")
    mebibytes = row.get("memory.total", "").split(" ")[0]
    if not architecture or not mebibytes.isdigit() or not row["index"].isdigit():
        raise Unreadable(f"hl-smi: {name or 'a device'} of {row.get('memory.total')!r} is not known")
    return Device(
        DeviceKind.GAUDI, int(row["index"]), name, architecture, int(mebibytes) * 2**20, row.get("driver_version", "")
    )
