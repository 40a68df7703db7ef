"""A service's metrics and the HTTP port that they are scraped from. What there is to record stands in `metric_table`.

Counters and histograms are told as things happen, from any thread. Gauges, and counters that somebody keeps anyway, are
read when scraped, on the service's event loop: they cost nothing in between.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import asynccontextmanager
from typing import TypeVar

from opentelemetry.trace import SpanContext
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from headrace.chassis.config import TlsSettings
from headrace.chassis.loop_time import busy_s
from headrace.chassis.metric_table.metric import Metric
from headrace.chassis.metric_table.process import LOOP_BUSY_SECONDS
from headrace.chassis.scrape_port import start_scrape_port
from headrace.core.errors import ConfigError

REFRESH_S = 2.0
"""A scrape waits this long for a busy event loop; then it shows what was read last."""

_Made = TypeVar("_Made", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of one service of this process. Several in a process do not mix."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        self._refreshers: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.registry.register(_Refresh(self))  # first, so that the others show what it reads
        ProcessCollector(registry=self.registry)
        loop_busy = Total(self.counter(LOOP_BUSY_SECONDS))
        self.before_scrape(lambda: loop_busy.is_now(busy_s()))

    def counter(self, metric: Metric) -> Counter:
        """The counter of this name; the same one each time. Raises ValueError where the service has no such."""
        return self._kept(Counter, metric, lambda name: Counter(name, metric.meaning, metric.labels, registry=None))

    def gauge(self, metric: Metric) -> Gauge:
        """As `counter`."""
        return self._kept(Gauge, metric, lambda name: Gauge(name, metric.meaning, metric.labels, registry=None))

    def histogram(self, metric: Metric) -> Histogram:
        """As `counter`."""
        return self._kept(
            Histogram,
            metric,
            lambda name: Histogram(name, metric.meaning, metric.labels, buckets=metric.buckets, registry=None),
        )

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """`refresh` is called on the event loop with each scrape, to set gauges."""
        self._refreshers.append(refresh)

    def refresh(self) -> None:
        """Reads what is read when scraped. On the event loop."""
        for refresh in self._refreshers:
            refresh()

    def _refresh_from_thread(self) -> None:
        if self._loop is None or self._loop.is_closed():
            return

        async def on_loop() -> None:
            self.refresh()

        future = asyncio.run_coroutine_threadsafe(on_loop(), self._loop)
        try:
            future.result(REFRESH_S)
        except FutureTimeoutError:
            future.cancel()

    @asynccontextmanager
    async def serving(self, listen: str, tls: TlsSettings | None = None) -> AsyncIterator[str]:
        """Answers GET /metrics at HOST:PORT until the block ends; yields the bound address. Nothing where it is ''.

        Raises ConfigError where the address cannot be bound, or the certificates are not to be had.
        """
        if not listen:
            yield ""
            return
        host, _, port = listen.rpartition(":")
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, and nothing gained
        self._loop = asyncio.get_running_loop()
        try:
            server, thread = start_scrape_port(host.strip("[]"), int(port), self.registry, tls)
        except OSError as error:
            raise ConfigError(f"cannot serve metrics on {listen}: {error.strerror}") from error
        try:
            yield f"{host}:{server.server_port}"
        finally:
            self._loop = None
            await asyncio.to_thread(_stop, server.shutdown, thread)
            server.server_close()

    def _kept(self, kind: type[_Made], metric: Metric, make: Callable[[str], _Made]) -> _Made:
        if metric.kind != kind.__name__.lower() or self._service not in metric.services:
            raise ValueError(f"{metric.name} is a {metric.kind} of {', '.join(metric.services)}")
        made = self._made.get(metric.name)
        if not isinstance(made, kind):
            made = self._made[metric.name] = make(metric.name.removesuffix("_total"))
            self.registry.register(made)
        return made


class Total:
    """A counter that follows a total that somebody else keeps; what that was `already` is not counted."""

    def __init__(self, counter: Counter, already: float = 0.0) -> None:
        self._counter = counter
        self._last = already

    def is_now(self, total: float) -> None:
        self._counter.inc(max(0.0, total - self._last))
        self._last = total


def exemplar(context: SpanContext) -> dict[str, str] | None:
    """What ties an observation to its trace; None where the trace is not kept."""
    return {"trace_id": f"{context.trace_id:032x}"} if context.is_valid and context.trace_flags.sampled else None


class _Refresh(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterable[Family]:
        self._metrics._refresh_from_thread()
        return ()


def _stop(shutdown: Callable[[], None], thread: threading.Thread) -> None:
    shutdown()
    thread.join(REFRESH_S)
