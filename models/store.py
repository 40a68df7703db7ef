"""The write side of the model repository: how a finished model enters it and leaves it.

A model is made in <home>/tmp-NAME and comes into <home>/models by a rename, so a reader sees a whole model or none. One
lock a name keeps two writers apart; whoever holds it may clear what a writer that died has left.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.chassis.file_lock import locked
from headrace.core.errors import HeadraceError, InvalidRequest, Unavailable
from headrace.models.manifest import FILE_NAME, Manifest, file_digest, render
from headrace.models.repository import Repository

LOCK_TIMEOUT_S = 600.0
OPENVINO_CANNOT_WRITE = "iostream error"  # all that it says; the half-written file it has removed by then
FULL_BYTES = 16 * 2**20  # with less free than this a write has failed for want of it, whatever the writer says


def check_name(name: str) -> str:
    """Returns a legal model name: 1 to 64 of a-z A-Z 0-9 . _ -, first a letter or digit. Raises InvalidRequest."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise InvalidRequest(
            f"{name!r} is no model name: use up to 64 letters, digits and . _ -, starting with a letter or digit",
            field="name",
        )
    return name


class Store:
    """Writes models under a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "models"

    @contextmanager
    def locked(
        self, name: str, timeout_s: float = LOCK_TIMEOUT_S, waiting: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Holds the name against other writers; `waiting` is called where one has to be waited for.

        Raises Unavailable if it keeps the name for longer.
        """
        (self.home / "locks").mkdir(parents=True, exist_ok=True)
        refusal = f"model {name!r} is being written by another process"
        with locked(self.home / "locks" / f"{check_name(name)}.lock", timeout_s, waiting, refusal):
            yield

    @contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        """An empty folder to make the model in, removed on exit. The caller holds the name's lock.

        Raises Unavailable in place of what a full disk made of the block.
        """
        work = self._work(name)
        self._clear(name)
        (work / "new").mkdir(parents=True)
        try:
            yield work / "new"
        except Exception as error:
            if shutil.disk_usage(work).free < FULL_BYTES or OPENVINO_CANNOT_WRITE in str(error):
                raise Unavailable(f"the disk that holds {self.home} is full: {name!r} is not added") from error
            raise
        finally:
            self._clear(name)

    def publish(self, name: str, manifest: Manifest) -> None:
        """Takes the staged folder's files in as the model, in place of an older one. The caller holds the lock."""
        new, target = self._work(name) / "new", self.root / name
        files = {path.relative_to(new).as_posix(): file_digest(path) for path in new.rglob("*") if path.is_file()}
        for file in files:
            _sync(new / file)
        (new / FILE_NAME).write_text(render(manifest, files), encoding="utf-8")
        _sync(new / FILE_NAME)
        _sync(new)
        self.root.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(self._work(name) / "old")
        new.rename(target)
        _sync(self.root)

    def remove(self, name: str) -> None:
        """Raises ModelNotFound."""
        with self.locked(check_name(name)):
            folder = Repository(self.home).folder(name)
            self._clear(name)
            self._work(name).mkdir()
            folder.rename(self._work(name) / "removed")  # at once, so that nobody reads a half-removed model
            self._clear(name)

    def sweep(self) -> None:
        """Clears what writers that died have left; names that a living writer holds are passed over."""
        for work in self.home.glob("tmp-*"):
            name = work.name.removeprefix("tmp-")
            try:
                with self.locked(name, timeout_s=0):
                    self._clear(name)
            except HeadraceError:  # a living writer's, or no model's name
                continue

    def _work(self, name: str) -> Path:
        return self.home / f"tmp-{name}"

    def _clear(self, name: str) -> None:
        old = self._work(name) / "old"
        if old.exists() and not (self.root / name).exists():
            old.rename(self.root / name)  # its writer died between the two renames of publish
        shutil.rmtree(self._work(name), ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
