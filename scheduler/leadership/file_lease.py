"""The lease in a file, for schedulers on one machine: times are on its monotonic clock, which all processes share."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.core.errors import Unavailable

LOCK_S = 1.0
"""Longest wait for whoever reads or writes the file at the moment."""


class FileLease:
    """Implements Lease. A file that makes no sense counts as one that nobody has."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, holder: str, ttl_s: float) -> bool:
        with self._locked():
            has_it, until = self._read()
            now = time.monotonic()
            # an end further away than any lease lasts is of another boot's clock
            if has_it not in ("", holder) and now < until <= now + ttl_s:
                return False
            self._write(holder, now + ttl_s)
            return True

    def give_back(self, holder: str) -> None:
        with self._locked():
            if self._read()[0] == holder:
                self._path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock", timeout=LOCK_S):
                yield
        except (Timeout, OSError) as error:
            raise Unavailable(f"the lease {self._path} cannot be read or written: {error}") from error

    def _read(self) -> tuple[str, float]:
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
            return str(known["holder"]), float(known["until_s"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return "", 0.0

    def _write(self, holder: str, until_s: float) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(json.dumps({"holder": holder, "until_s": until_s}), encoding="utf-8")
        new.rename(self._path)
