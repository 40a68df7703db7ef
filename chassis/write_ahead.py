"""SQLite files that several processes open at once: the change to write-ahead logging."""

import sqlite3

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

_PAUSE_S = 0.02


def write_ahead(connection: sqlite3.Connection, patience_s: float) -> None:
    """Readers and the one writer do not wait for each other from here on, and a commit is one write.

    Where another process is about to do the same SQLite says at once that the file is busy, whatever the connection's
    timeout, so this waits for it itself. Raises sqlite3.Error.
    """
    for attempt in Retrying(
        retry=retry_if_exception(_busy), stop=stop_after_delay(patience_s), wait=wait_random(0, _PAUSE_S), reraise=True
    ):
        with attempt:
            connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY
