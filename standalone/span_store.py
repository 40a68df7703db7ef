"""The span store's write side: a bounded SQLite file of spans as they came, with the columns that we search by.

Oldest spans leave first, by number and by bytes. Each write is one transaction over a write-ahead log, so a killed
process loses at most the write it was in. span_reader.py reads the same file.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from headrace.chassis.write_ahead import write_ahead
from headrace.core.errors import ConfigError, Unavailable
from headrace.standalone.span_rows import SpanRow

MAX_SPANS = 200_000
MAX_STORED_BYTES = 256 * 2**20
LOCK_WAIT_S = 5.0
FORMAT = 1  # of the file; kept in user_version

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS spans (
    seq INTEGER PRIMARY KEY,        -- order of arrival
    total_bytes INTEGER NOT NULL,   -- of all spans ever stored up to this one, so that bytes are pruned like numbers
    trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT NOT NULL,
    name TEXT NOT NULL, service TEXT NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, status INTEGER NOT NULL,
    request_id TEXT,
    span BLOB NOT NULL, resource BLOB NOT NULL, scope BLOB NOT NULL,
    UNIQUE (trace_id, span_id)
);
CREATE INDEX IF NOT EXISTS spans_by_request ON spans (request_id, start_ns) WHERE request_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS spans_by_parent ON spans (trace_id, parent_id);
CREATE INDEX IF NOT EXISTS spans_by_name ON spans (name, start_ns);
PRAGMA user_version = {FORMAT};
"""
_INSERT = f"""
INSERT OR REPLACE INTO spans (total_bytes, {", ".join(SpanRow._fields)})
VALUES ({", ".join("?" * (1 + len(SpanRow._fields)))})
"""
_TOTAL = "SELECT coalesce((SELECT total_bytes FROM spans ORDER BY seq DESC LIMIT 1), 0)"


class SpanStore:
    """One open file; one thread at a time may write. Several processes may share the file."""

    def __init__(self, connection: sqlite3.Connection, max_spans: int, max_bytes: int) -> None:
        self._connection = connection
        self._max_spans = max_spans
        self._max_bytes = max_bytes

    def write(self, rows: list[SpanRow]) -> None:
        """Stores all rows or none. A span that is sent twice is stored once.

        Raises Unavailable where the file is locked or the disk is full: what stands in it is unharmed.
        """
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                (total,) = self._connection.execute(_TOTAL).fetchone()
                for row in rows:
                    total += len(row.span) + len(row.resource) + len(row.scope)
                    self._connection.execute(_INSERT, (total, *row))
                self._prune(total)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the span store cannot be written: {error}", retry_after_s=1.0) from error

    def _prune(self, total: int) -> None:
        self._connection.execute("DELETE FROM spans WHERE seq <= (SELECT max(seq) FROM spans) - ?", (self._max_spans,))
        self._connection.execute(
            "DELETE FROM spans WHERE seq < (SELECT seq FROM spans WHERE total_bytes > ? ORDER BY seq LIMIT 1)",
            (total - self._max_bytes,),
        )


@contextmanager
def open_store(database: Path, max_spans: int = MAX_SPANS, max_bytes: int = MAX_STORED_BYTES) -> Iterator[SpanStore]:
    """The store in this file, made where there is none. Raises ConfigError where the file is not a span store."""
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(database, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"cannot keep spans in {database}: {error}") from error
    with closing(connection):
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise ConfigError(
                    f"{database} has span store format {version}, not {FORMAT}: remove it or name another"
                )
            write_ahead(connection, LOCK_WAIT_S)
            connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigError(f"cannot keep spans in {database}: {error}") from error
        yield SpanStore(connection, max_spans, max_bytes)
