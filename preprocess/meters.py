"""What is recorded of preparing prompts: how long each takes, and how many are under way."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.chassis.metric_table import text as table
from headrace.chassis.metrics import Metrics


class PrepareMeters:
    """Of one pipeline with so many threads. The event loop owns it."""

    def __init__(self, metrics: Metrics, threads: int) -> None:
        self._seconds = metrics.histogram(table.PREPARE_SECONDS)
        self._waiting = metrics.gauge(table.PREPARE_WAITING)
        metrics.gauge(table.PREPARE_THREADS).set(threads)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around one prompt's preparation, with its wait for a thread."""
        began = time.perf_counter()
        self._waiting.inc()
        try:
            yield
        finally:
            self._waiting.dec()
            self._seconds.observe(time.perf_counter() - began)
