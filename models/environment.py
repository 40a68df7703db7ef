"""An environment of its own for what a conversion needs and serving does not, such as torch.

It is made when it is first wanted, and made again when what it must hold changes.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from headrace.core.errors import EngineFault, Unavailable

TIMEOUT_S = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment in `folder`: `requirements` installed, `unwanted` taken out again; `purpose` is for messages."""

    folder: Path
    requirements: tuple[str, ...]
    purpose: str
    unwanted: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        try:
            return self._python.exists() and self._stamp.read_text(encoding="utf-8") == self._stamp_text
        except FileNotFoundError:
            return False

    def install(self) -> None:
        """Makes the environment unless another process just did. Raises Unavailable in one line."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder.with_suffix(".lock"), timeout=TIMEOUT_S):
                if not self.ready:
                    self._make()
        except Timeout:
            raise Unavailable(f"another process keeps making the environment that {self.purpose}") from None

    def run(self, script: Path, *arguments: Path) -> str | None:
        """Runs a script; returns the last words of one that failed, else None."""
        return _run([str(self._python), str(script), *map(str, arguments)])

    def probed(
        self, script: Path, source: Path, work: Path, probes: Sequence[Sequence[int]], answers: str, failure: str
    ) -> list[NDArray[np.float32]]:
        """What `source` says to each probe's token ids, by a script that is given `source` and the folder `work`.

        The folder is made here; the script reads probes.json in it, and writes arrays named by the probes' numbers to
        `answers`. Raises EngineFault, `failure` and the script's last words.
        """
        work.mkdir()
        (work / "probes.json").write_text(json.dumps(probes), encoding="utf-8")
        if (said := self.run(script, source, work)) is not None:
            raise EngineFault(f"{failure}: {said}")
        with np.load(work / answers) as arrays:
            return [arrays[str(index)] for index in range(len(probes))]

    def _make(self) -> None:
        self._stamp.unlink(missing_ok=True)
        pip = [str(self._python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        steps = [
            [sys.executable, "-m", "venv", "--clear", str(self.folder)],
            [*pip, "install", *self.requirements],
            *([[*pip, "uninstall", "--yes", *self.unwanted]] if self.unwanted else []),
        ]
        for step in steps:
            if (said := _run(step)) is not None:
                raise Unavailable(f"the environment that {self.purpose} cannot be made: {said}")
        self._stamp.write_text(self._stamp_text, encoding="utf-8")

    @property
    def _python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def _stamp(self) -> Path:
        """Written last: an unfinished environment has none."""
        return self.folder / "headrace-requirements.txt"

    @property
    def _stamp_text(self) -> str:
        return "\n".join(self.requirements) + "\n"


def _run(command: Sequence[str]) -> str | None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if run.returncode == 0:
        return None
    lines = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {run.returncode}"
