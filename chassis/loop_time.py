"""How long the calling thread has been busy: it computed, or was ready to and waited for a processor."""

import time
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of Linux: nanoseconds run, nanoseconds ready but not running, and how often it was given a processor."""


def busy_s() -> float:
    """Seconds so far; where the system does not count the waits, those computed alone."""
    try:
        run_ns, ready_ns, _ = SCHEDSTAT.read_text(encoding="ascii").split()
        return (int(run_ns) + int(ready_ns)) / 1e9
    except (OSError, ValueError):
        return time.thread_time()
