"""CPU time of the suite's processes, read from /proc (Linux)."""

import os
from collections.abc import Iterator
from pathlib import Path


def cpu_s(root_pid: int) -> dict[str, float]:
    """CPU seconds so far of each service below the supervisor, by service name; empty without /proc."""
    times: dict[str, float] = {}
    for service, pid in pids(root_pid).items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        times[service] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime + stime
    return times


def pids(root_pid: int) -> dict[str, int]:
    """The process of each service below the supervisor, by service name; empty without /proc."""
    found: dict[str, int] = {}
    for pid in _descendants(root_pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "headrace.standalone.process" in words:
            found[words[words.index("headrace.standalone.process") + 1]] = pid
    return found


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(word) for word in children.read_text(encoding="utf-8").split()]
        except OSError:
            continue
        for child in direct:
            yield child
            yield from _descendants(child)
