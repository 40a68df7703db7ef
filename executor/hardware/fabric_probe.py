"""Asks the machine how its GPUs reach each other and the network; says nothing of what that means."""

import importlib.util
from pathlib import Path

from headrace.executor.hardware.fabric import MODULES, NVIDIA_VERSION, RDMA_DEVICES, TOPOLOGY, TRANSPORTS
from headrace.executor.hardware.probe import run_tool

PACKAGES = ("nixl", "ucxx", "ucp")
"""What moves KV between machines, by the names under which it is imported."""


def probe_fabric(root: Path = Path("/")) -> dict[str, str]:
    """Outputs by file name; empty ones are left out. `root` is where proc and sys are."""
    texts = {
        TOPOLOGY: run_tool(("nvidia-smi", "topo", "-m")) or "",
        RDMA_DEVICES: _ports(root / "sys/class/infiniband"),
        MODULES: _read(root / "proc/modules"),
        NVIDIA_VERSION: _read(root / "proc/driver/nvidia/version"),
        TRANSPORTS: "\n".join(name for name in PACKAGES if importlib.util.find_spec(name) is not None),
    }
    return {name: text for name, text in texts.items() if text.strip()}


def _ports(folder: Path) -> str:
    lines = []
    for card in _entries(folder):
        for port in _entries(card / "ports"):
            values = (_read(port / name).strip() for name in ("link_layer", "rate", "state"))
            lines.append("\t".join((card.name, port.name, *values)))
    return "\n".join(lines)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
