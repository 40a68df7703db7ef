"""The engine store: each engine once, under the digest of all that it was built from.

An engine NAME.engine counts only with its record NAME.json beside it, which is written last and holds the engine's
size and SHA-256. What does not match is built again, never handed out. One file lock a name lets one builder build and
the others wait; a lock goes with its process, and what a dead builder left is cleared by the next.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.chassis.file_lock import locked
from headrace.core.errors import EngineNotReady, Unavailable
from headrace.executor.tensorrt.job import PLAIN, BuildOptions
from headrace.executor.tensorrt.ladder import Profile

LONGEST_WAIT_S = 3_600.0
_ENGINE, _RECORD = ".engine", ".json"


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What an engine depends on. `model_digest` is the SHA-256 of the ONNX file and what it refers to; `builder`
    counts up when the same model would be built otherwise."""

    model_digest: str
    flavour: str
    flavour_version: str
    architecture: str
    precision: str
    profiles: tuple[Profile, ...]
    options: BuildOptions = PLAIN
    builder: int = 1

    @property
    def name(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.architecture}-{self.precision}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


@dataclass(frozen=True, slots=True)
class StoredEngine:
    """A whole engine. `built` is False where it was there already."""

    name: str
    path: Path
    size_bytes: int
    model: str
    key: dict[str, Any]
    used: float
    built: bool = False


class EngineStore:
    """Engines under `root`, the least lately used removed where they take more than `most_bytes` (0: no bound)."""

    def __init__(self, root: Path, most_bytes: int = 0) -> None:
        self.root = root
        self.most_bytes = most_bytes

    def get(self, key: EngineKey) -> StoredEngine | None:
        """The engine if it is there and whole; its bytes are compared with their digest."""
        engine, record = self._paths(key.name)
        try:
            data = json.loads(record.read_text(encoding="utf-8"))
            whole = data["key"] == json.loads(json.dumps(asdict(key))) and data["sha256"] == _digest(engine)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not whole:
            return None
        with suppress(OSError):  # a store that may only be read
            os.utime(record)  # lately used
        return self._stored(key.name, data)

    def get_or_build(
        self,
        key: EngineKey,
        model: str,
        build: Callable[[Path], None],
        *,
        waiting: Callable[[], None] = lambda: None,
        timeout_s: float = LONGEST_WAIT_S,
    ) -> StoredEngine:
        """`build(path)` writes the engine to `path`; `waiting` is called where another process builds it already.

        Raises Unavailable where the store cannot be written or another builder keeps it for too long, EngineNotReady
        where nothing was built, and whatever `build` raises.
        """
        if (found := self.get(key)) is not None:
            return found
        with self._writable(key.name), self._locked(key.name, waiting, timeout_s):
            if (found := self.get(key)) is not None:
                return found
            stored = self._build(key, model, build)
        self.prune(keep=key.name)
        return stored

    def engines(self) -> list[StoredEngine]:
        """Those with a record, the latest used first."""
        found = []
        for record in self.root.glob(f"*{_RECORD}"):
            try:
                found.append(self._stored(record.stem, json.loads(record.read_text(encoding="utf-8"))))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return sorted(found, key=lambda each: -each.used)

    def prune(self, most_bytes: int | None = None, keep: str = "") -> list[StoredEngine]:
        """Removes the least lately used until the rest fits, never `keep`, and returns what it removed."""
        most = self.most_bytes if most_bytes is None else most_bytes
        if most_bytes is None and not most:
            return []
        removed, total = [], 0
        for each in self.engines():
            total += each.size_bytes
            if total > most and each.name != keep:
                with self._writable(each.name), self._locked(each.name, lambda: None, LONGEST_WAIT_S):
                    self._clear(each.name)
                total -= each.size_bytes
                removed.append(each)
        return removed

    def _build(self, key: EngineKey, model: str, build: Callable[[Path], None]) -> StoredEngine:
        self._clear(key.name)
        engine, record = self._paths(key.name)
        work = self.root / f"tmp-{key.name}"
        work.mkdir()
        try:
            build(work / "engine")
            if not (work / "engine").is_file() or not (work / "engine").stat().st_size:
                raise EngineNotReady(f"no engine was built for {key.architecture} in {key.precision}")
            data = {
                "key": asdict(key),
                "model": model,
                "size_bytes": (work / "engine").stat().st_size,
                "sha256": _digest(work / "engine"),
                "built_at": time.strftime("%Y-%m-%dT%H:%M:%S"),
            }
            (work / "record").write_text(json.dumps(data, indent=1), encoding="utf-8")
            for name in ("engine", "record"):
                _sync(work / name)
            (work / "engine").rename(engine)
            (work / "record").rename(record)
            _sync(self.root)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return replace(self._stored(key.name, data), built=True)

    def _stored(self, name: str, data: dict[str, Any]) -> StoredEngine:
        engine, record = self._paths(name)
        used = record.stat().st_mtime
        return StoredEngine(name, engine, int(data["size_bytes"]), data["model"], data["key"], used)

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self.root / f"{name}{_ENGINE}", self.root / f"{name}{_RECORD}"

    def _clear(self, name: str) -> None:
        """The record first: without it an engine does not count."""
        engine, record = self._paths(name)
        record.unlink(missing_ok=True)
        engine.unlink(missing_ok=True)
        shutil.rmtree(self.root / f"tmp-{name}", ignore_errors=True)

    @contextmanager
    def _locked(self, name: str, waiting: Callable[[], None], timeout_s: float) -> Iterator[None]:
        refusal = f"another process has been building {name} for over {timeout_s:g} s"
        with locked(self.root / "locks" / f"{name}.lock", timeout_s, waiting, refusal):
            yield

    @contextmanager
    def _writable(self, name: str) -> Iterator[None]:
        """One line for what a full or read-only disk makes of the block."""
        try:
            (self.root / "locks").mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            known = {errno.ENOSPC: "is full", errno.EDQUOT: "is over its quota", errno.EROFS: "may only be read"}
            known |= {errno.EACCES: "may not be written", errno.EPERM: "may not be written"}
            why = known.get(error.errno or 0, f"cannot be written ({error.strerror})")
            raise Unavailable(f"the engine store {self.root} {why}: {name} is not built") from error


def model_digest(path: Path, others: list[Path]) -> str:
    """SHA-256 over the digests of the file and, by name, of those that hold its weights."""
    lines = [_digest(path), *(f"{_digest(each)} {each.name}" for each in sorted(others))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def may_run(key: dict[str, Any], architecture: str, flavour: str, flavour_version: str) -> str:
    """'' where an engine of this key runs on the device and library, else why not. Pure."""
    options = key["options"]
    if key["flavour"] != flavour:
        return f"it is of {key['flavour']}, not of {flavour}"
    if key["flavour_version"] != flavour_version:
        made, here = (_numbers(each) for each in (key["flavour_version"], flavour_version))
        if not options["version_compatible"] or made[:1] != here[:1] or made > here:
            return f"it is of version {key['flavour_version']}, not {flavour_version}"
    if key["architecture"] != architecture:
        made, here = (_numbers(each) for each in (key["architecture"], architecture))
        if not options["hardware_compatible"] or made > here or made < [80]:
            return f"it is for {key['architecture']}, not for {architecture}"
    return ""


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]
