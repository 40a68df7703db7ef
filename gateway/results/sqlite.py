"""Results in one SQLite file. What a call has written outlives the process, also one that is killed.

A thread of its own owns the connection. The file is made by the first call; several gateways of a machine may share it.
"""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from headrace.chassis.write_ahead import write_ahead
from headrace.core.errors import Overloaded, Unavailable
from headrace.core.result_state import ResultState
from headrace.gateway.results.port import LONGEST_S, RETRY_AFTER_S, Bounds, Summary

Given = TypeVar("Given")

BUSY_S = 2.0
SCHEMA = """
CREATE TABLE results (
    handle TEXT PRIMARY KEY, tenant TEXT NOT NULL, request_id TEXT NOT NULL, model TEXT NOT NULL,
    created_s REAL NOT NULL, lost_s REAL NOT NULL, expires_s REAL NOT NULL, state INTEGER NOT NULL,
    num_pieces INTEGER NOT NULL, num_tokens INTEGER NOT NULL, num_bytes INTEGER NOT NULL,
    reason TEXT NOT NULL, message TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_tenant ON results (tenant, created_s);
CREATE INDEX by_expiry ON results (expires_s);
CREATE TABLE pieces (
    handle TEXT NOT NULL REFERENCES results ON DELETE CASCADE, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (handle, number)
) WITHOUT ROWID;
CREATE TABLE totals (num_results INTEGER NOT NULL, num_bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER added AFTER INSERT ON results BEGIN
    UPDATE totals SET num_results = num_results + 1, num_bytes = num_bytes + NEW.num_bytes;
END;
CREATE TRIGGER grown AFTER UPDATE OF num_bytes ON results BEGIN
    UPDATE totals SET num_bytes = num_bytes + NEW.num_bytes - OLD.num_bytes;
END;
CREATE TRIGGER dropped AFTER DELETE ON results BEGIN
    UPDATE totals SET num_results = num_results - 1, num_bytes = num_bytes - OLD.num_bytes;
END;
"""
TAKEOVERS = """
ALTER TABLE results ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE results ADD COLUMN due_s REAL NOT NULL DEFAULT 0;
ALTER TABLE results ADD COLUMN request_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE results ADD COLUMN trace TEXT NOT NULL DEFAULT '';
CREATE INDEX by_loss ON results (lost_s) WHERE state = 1;
CREATE TABLE requests (handle TEXT PRIMARY KEY REFERENCES results ON DELETE CASCADE, data BLOB NOT NULL) WITHOUT ROWID;
"""
STEPS = (SCHEMA, TAKEOVERS)
"""What leads from each version of the file to the next, from the empty file on."""
_COLUMNS = tuple(field.name for field in fields(Summary))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM results"
_INSERT = f"INSERT INTO results ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


@dataclass(frozen=True, slots=True)
class _Work:
    run: Callable[[sqlite3.Connection], Any]
    done: "asyncio.Future[Any]"


class SqliteStore:
    """See ResultStore. `async with` closes the file."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._path = path
        self._bounds = bounds
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "results")
        self._waiting: deque[_Work] = deque()

    async def __aenter__(self) -> "SqliteStore":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._thread.submit(self._shut)
        self._thread.shutdown(wait=False)

    async def open(self, summary: Summary, request: bytes = b"", pieces: Sequence[bytes] = ()) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM results WHERE expires_s <= ?", (summary.created_s,))
            while db.execute("SELECT num_results FROM totals").fetchone()[0] >= self._bounds.max_results:
                if not _drop_oldest(db, summary.created_s):
                    raise Overloaded(
                        f"{self._bounds.max_results} results are being made",
                        limit=f"{self._bounds.max_results} results",
                        retry_after_s=RETRY_AFTER_S,
                    )
            db.execute(_INSERT, [getattr(summary, name) for name in _COLUMNS])
            db.execute("INSERT INTO requests VALUES (?, ?)", (summary.handle, request))
            _add_pieces(db, summary.handle, 0, pieces)

        await self._do(write)

    async def append(
        self,
        handle: str,
        epoch: int,
        first: int,
        pieces: Sequence[bytes],
        num_tokens: int,
        lost_s: float,
        expires_s: float,
    ) -> bool:
        def write(db: sqlite3.Connection) -> bool:
            owned = "SELECT num_pieces FROM results WHERE handle = ? AND epoch = ?"
            row = db.execute(owned, (handle, epoch)).fetchone()
            if row is None:
                return False
            new = pieces[max(0, row[0] - first) :]
            _add_pieces(db, handle, max(first, row[0]), new)
            db.execute(
                "UPDATE results SET num_pieces = num_pieces + ?, num_tokens = ?, num_bytes = num_bytes + ?,"
                " lost_s = ?, expires_s = ? WHERE handle = ?",
                (len(new), num_tokens, sum(map(len, new)), lost_s, expires_s, handle),
            )
            while db.execute("SELECT num_bytes FROM totals").fetchone()[0] > self._bounds.max_bytes:
                if not _drop_oldest(db, time.time()):
                    break
            return True

        return await self._do(write)

    async def close(
        self, handle: str, epoch: int, state: ResultState, reason: str, message: str, expires_s: float
    ) -> bool:
        def write(db: sqlite3.Connection) -> bool:
            closed = db.execute(
                "UPDATE results SET state = ?, reason = ?, message = ?, expires_s = ?,"
                " num_bytes = num_bytes - request_bytes, request_bytes = 0 WHERE handle = ? AND epoch = ?",
                (state, reason, message, expires_s, handle, epoch),
            )
            if closed.rowcount > 0:
                db.execute("DELETE FROM requests WHERE handle = ?", (handle,))
            return closed.rowcount > 0

        return await self._do(write)

    async def lost(self, now_s: float, most: int) -> list[Summary]:
        if not self._path.exists():
            return []  # nothing has been kept yet, and looking makes no file
        select = f"{_SELECT} WHERE state = {int(ResultState.RUNNING)} AND lost_s <= ? ORDER BY lost_s LIMIT ?"
        rows = await self._do(lambda db: db.execute(select, (now_s, most)).fetchall())
        return [_summary(row) for row in rows]

    async def take(self, handle: str, epoch: int, now_s: float, lost_s: float, expires_s: float) -> bytes | None:
        def write(db: sqlite3.Connection) -> bytes | None:
            taken = db.execute(
                "UPDATE results SET epoch = epoch + 1, lost_s = ?, expires_s = ?"
                " WHERE handle = ? AND epoch = ? AND state = ? AND lost_s <= ?",
                (lost_s, expires_s, handle, epoch, ResultState.RUNNING, now_s),
            )
            if not taken.rowcount:
                return None
            row = db.execute("SELECT data FROM requests WHERE handle = ?", (handle,)).fetchone()
            return bytes(row[0]) if row else b""

        return await self._do(write)

    async def find(self, handle: str) -> Summary | None:
        row = await self._do(lambda db: db.execute(f"{_SELECT} WHERE handle = ?", (handle,)).fetchone())
        return _summary(row) if row else None

    async def read(self, handle: str, first: int, most: int) -> list[bytes]:
        select = "SELECT data FROM pieces WHERE handle = ? AND number >= ? ORDER BY number LIMIT ?"
        rows = await self._do(lambda db: db.execute(select, (handle, first, most)).fetchall())
        return [row[0] for row in rows]

    async def list(self, tenant: str) -> list[Summary]:
        select = f"{_SELECT} WHERE tenant = ? ORDER BY created_s DESC"
        rows = await self._do(lambda db: db.execute(select, (tenant,)).fetchall())
        return [_summary(row) for row in rows]

    async def drop(self, handle: str) -> None:
        await self._do(lambda db: db.execute("DELETE FROM results WHERE handle = ?", (handle,)))

    async def _do(self, work: Callable[[sqlite3.Connection], Given]) -> Given:
        """All of it or nothing, and on disk once it returns."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Given] = loop.create_future()
        self._waiting.append(_Work(work, done))
        self._thread.submit(self._take_turn, loop)
        try:
            async with asyncio.timeout(LONGEST_S):
                return await done
        except TimeoutError:
            raise Unavailable(f"the results in {self._path.name} did not answer within {LONGEST_S:g} s") from None
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(f"the results in {self._path.name} cannot be reached: {error}") from error

    def _take_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """All that waits in one transaction: many answers are stored at once, and one of them must not wait for the
        commits of all others."""
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        works = [work for work in taken if not work.done.cancelled()]
        if not works:
            return  # an earlier turn took it along
        try:
            outcomes = self._transact([work.run for work in works])
        except Exception as error:
            outcomes = [error] * len(works)

        def tell() -> None:
            for work, outcome in zip(works, outcomes, strict=True):
                if work.done.done():
                    continue
                if isinstance(outcome, Exception):
                    work.done.set_exception(outcome)
                else:
                    work.done.set_result(outcome)

        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(tell)

    def _transact(self, works: Sequence[Callable[[sqlite3.Connection], Any]]) -> Sequence[Any]:
        """What each gives or raises; one that raises has changed nothing. Raises where none has."""
        db = self._connection = self._connection or self._connected()
        outcomes: list[Any] = []
        db.execute("BEGIN IMMEDIATE")
        try:
            for work in works:
                db.execute("SAVEPOINT one")
                try:
                    outcomes.append(work(db))
                except Exception as error:
                    outcomes.append(error)
                    db.execute("ROLLBACK TO one")
                db.execute("RELEASE one")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a full disk ends it by itself
                db.execute("ROLLBACK")
            raise
        return outcomes

    def _connected(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        write_ahead(db, BUSY_S)
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("BEGIN IMMEDIATE")  # of several gateways that start at once one makes the tables
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for step in STEPS[version:]:
            for statement in _statements(step):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {max(version, len(STEPS))}")
        db.execute("COMMIT")
        if version > len(STEPS):
            db.close()
            raise sqlite3.DatabaseError(f"the file is of version {version}, not {len(STEPS)}")
        return db

    def _shut(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _statements(script: str) -> list[str]:
    """One a statement; triggers end at their END."""
    statements, gathered = list[str](), ""
    for line in script.strip().splitlines():
        gathered += line + "\n"
        if sqlite3.complete_statement(gathered):
            statements.append(gathered)
            gathered = ""
    return statements


def _add_pieces(db: sqlite3.Connection, handle: str, first: int, pieces: Sequence[bytes]) -> None:
    numbered = enumerate(pieces, first)
    db.executemany("INSERT INTO pieces VALUES (?, ?, ?)", ((handle, number, data) for number, data in numbered))


def _drop_oldest(db: sqlite3.Connection, now_s: float) -> bool:
    """The one that has ended and would expire first, else one that is lost. False where all of them run."""
    running = int(ResultState.RUNNING)
    oldest = f"SELECT handle FROM results WHERE state != {running} OR lost_s <= ? ORDER BY state = {running}, expires_s"
    dropped = db.execute(f"DELETE FROM results WHERE handle = ({oldest} LIMIT 1)", (now_s,))
    return dropped.rowcount > 0


def _summary(row: tuple[object, ...]) -> Summary:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Summary(**values | {"state": ResultState(values["state"])})  # type: ignore[arg-type]
