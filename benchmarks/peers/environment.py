"""A peer's own Python environment under <home>/peers: made on demand, reused, whole or not there.

Peers pin other versions of protobuf, numpy and transformers than ours, so they never share an environment.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import headrace
from headrace.core.errors import Unavailable

INSTALL_S = 3600.0
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """pip's arguments for each step, and what to take out again (packages that are wanted but break the rest)."""

    name: str
    install: tuple[tuple[str, ...], ...]
    uninstall: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is ready. `driver_path` holds the `headrace` package alone, for the drivers."""

    folder: Path
    python: Path
    driver_path: Path

    def variables(self) -> dict[str, str]:
        """This process's variables, with ours importable and no other Python setting."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "HEADRACE_", "VIRTUAL_ENV"))
        }
        return kept | {"PYTHONPATH": str(self.driver_path), "PYTHONUNBUFFERED": "1"}


def prepare(recipe: Recipe, peers: Path, progress: Progress) -> Environment:
    """The recipe's environment, made if missing or made by another recipe. Raises Unavailable with the reason."""
    folder = peers / recipe.name
    environment = Environment(folder, folder / "bin" / "python", _driver_path(peers))
    stamp = folder / "recipe.txt"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == repr(recipe):
        return environment
    progress(f"{recipe.name}: making its environment in {folder} (once; minutes)")
    log = peers / f"{recipe.name}-install.log"
    pip = (str(environment.python), "-m", "pip")
    run((sys.executable, "-m", "venv", "--clear", str(folder)), log)
    for arguments in recipe.install:
        progress(f"{recipe.name}: pip install {' '.join(arguments)}")
        run((*pip, "install", "--disable-pip-version-check", *arguments), log)
    if recipe.uninstall:
        run((*pip, "uninstall", "--yes", *recipe.uninstall), log)
    stamp.write_text(repr(recipe), encoding="utf-8")
    return environment


def run(command: Sequence[str], log: Path, variables: dict[str, str] | None = None) -> None:
    """Runs a command with its output appended to `log`. Raises Unavailable naming the log's last line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        try:
            subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, check=True, timeout=INSTALL_S, env=variables
            )
        except (OSError, subprocess.SubprocessError) as error:
            output.flush()
            raise Unavailable(f"{Path(command[0]).name} failed: {last_line(log) or error} (see {log})") from error


def last_line(log: Path) -> str:
    """The last line of a log that says something; '' for an empty log."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _driver_path(peers: Path) -> Path:
    """A folder whose only content is a link to this package, so that drivers see nothing else of our environment."""
    folder = peers / "import"
    folder.mkdir(parents=True, exist_ok=True)
    link, package = folder / "headrace", Path(headrace.__file__).parent
    if not (link.is_symlink() and link.resolve() == package.resolve()):
        fresh = folder / f"headrace.{os.getpid()}"
        fresh.symlink_to(package)
        fresh.replace(link)
    return folder
