"""CPU time of the suite's processes, read from /proc (Linux)."""

import os
from collections.abc import Iterator
from pathlib import Path

SUPERVISOR = "supervisor"


def cpu_s(root_pid: int) -> dict[str, float]:
    """CPU seconds so far of each service below the supervisor, by service name; empty without /proc."""
    times = {service: _used_s(Path(f"/proc/{pid}/stat")) for service, pid in pids(root_pid).items()}
    return {service: used_s for service, used_s in times.items() if used_s is not None}


def threads_cpu_s(root_pid: int) -> dict[tuple[str, int], float]:
    """CPU seconds so far of each thread of the services and of the supervisor, by service name and thread id; empty
    without /proc."""
    times = {
        (service, int(thread.name)): _used_s(thread / "stat")
        for service, pid in {SUPERVISOR: root_pid, **pids(root_pid)}.items()
        for thread in Path(f"/proc/{pid}/task").glob("*")
    }
    return {thread: used_s for thread, used_s in times.items() if used_s is not None}


def _used_s(stat: Path) -> float | None:
    """None where it has just ended."""
    try:
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime + stime


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
