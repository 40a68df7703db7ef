"""Write-ahead logging is turned on beside others that write, or turn it on too."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from headrace.chassis.write_ahead import write_ahead

PATIENCE_S = 30.0


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)


def test_it_waits_for_one_that_writes(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "file")) as other, closing(connect(tmp_path / "file")) as own:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            write_ahead(own, 0.05)
        ending = threading.Timer(0.1, lambda: other.execute("COMMIT"))
        ending.start()
        write_ahead(own, PATIENCE_S)
        ending.join()
        assert own.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_many_at_once_turn_it_on(tmp_path: Path) -> None:
    faults: list[Exception] = []

    def turn_on(path: Path, together: threading.Barrier) -> None:
        together.wait(PATIENCE_S)
        try:
            with closing(connect(path)) as own:
                write_ahead(own, PATIENCE_S)
        except sqlite3.Error as error:
            faults.append(error)

    for number in range(50):
        together = threading.Barrier(4)
        path = tmp_path / str(number)
        threads = [threading.Thread(target=turn_on, args=(path, together)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not faults


def test_a_file_that_is_no_database_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no database " * 100)
    with closing(connect(tmp_path / "file")) as own, pytest.raises(sqlite3.DatabaseError, match="not a database"):
        write_ahead(own, PATIENCE_S)
