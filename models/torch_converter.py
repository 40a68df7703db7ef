"""Converts safetensors decoders in an environment of its own, since that takes torch, which serving does not.

The environment is made when it is first wanted, and made again when what it must hold changes.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import EngineFault, Unavailable

REQUIREMENTS = ("optimum-intel[openvino]==2.2.0", "openvino==2026.4.1", "torch==2.13.0")
# Comes along, serves images only, and where it was built for another torch keeps transformers from loading.
UNWANTED = ("torchvision",)
TIMEOUT_S = 4 * 3600.0
_SCRIPT = Path(__file__).with_name("torch_export.py")


class TorchConverter:
    """The environment in `folder` and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = folder / "bin" / "python"
        self._stamp = folder / "headrace-requirements.txt"  # written last: an unfinished environment has none

    @property
    def ready(self) -> bool:
        try:
            return self._python.exists() and self._stamp.read_text(encoding="utf-8") == _stamp_text()
        except FileNotFoundError:
            return False

    def install(self) -> None:
        """Makes the environment (some gigabytes of packages). Raises Unavailable in one line."""
        self._stamp.unlink(missing_ok=True)
        pip = [str(self._python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        steps = (
            [sys.executable, "-m", "venv", "--clear", str(self._folder)],
            [*pip, "install", *REQUIREMENTS],
            [*pip, "uninstall", "--yes", *UNWANTED],
        )
        for step in steps:
            if (said := _run(step)) is not None:
                raise Unavailable(f"the environment that converts safetensors decoders cannot be made: {said}")
        self._stamp.write_text(_stamp_text(), encoding="utf-8")

    def run(self, source: Path, target: Path, probes: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Writes the graph into `target`, and in float32 into `target`/whole.

        Returns the source's own logits [T, V] of each probe. Raises EngineFault with the exporter's last words.
        """
        target.mkdir()
        (target / "probes.json").write_text(json.dumps(probes), encoding="utf-8")
        if (said := _run([str(self._python), str(_SCRIPT), str(source), str(target)])) is not None:
            raise EngineFault(f"{source.name} cannot be converted: {said}")
        with np.load(target / "logits.npz") as logits:
            return [logits[str(index)] for index in range(len(probes))]


def _stamp_text() -> str:
    return "\n".join(REQUIREMENTS) + "\n"


def _run(command: Sequence[str]) -> str | None:
    """The last words of a command that failed, else None."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if run.returncode == 0:
        return None
    lines = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {run.returncode}"
