"""A file that one process holds at a time. The lock goes with its process, however that ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.core.errors import Unavailable


@contextmanager
def locked(path: Path, timeout_s: float, waiting: Callable[[], None], refusal: str) -> Iterator[None]:
    """Holds the file; `waiting` is called where another process does so first.

    Raises Unavailable with `refusal` if that keeps it for longer than `timeout_s`, OSError where it cannot be written.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout:
            raise Unavailable(refusal) from None
    try:
        yield
    finally:
        lock.release()
