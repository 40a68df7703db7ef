"""Metrics of one service over HTTP, as a scraper sees them."""

import asyncio
import threading
import urllib.request

import pytest
from opentelemetry.trace import SpanContext, TraceFlags
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from headrace.chassis.metric_table import device, scheduler
from headrace.chassis.metrics import Metrics, Total, exemplar
from headrace.core.errors import ConfigError

TRACED = SpanContext(0xABC, 0x1, False, TraceFlags(TraceFlags.SAMPLED))
UNTRACED = SpanContext(0xABC, 0x1, False, TraceFlags(0))


def _get(address: str) -> str:
    request = urllib.request.Request(
        f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        text: str = response.read().decode()
        return text


async def test_a_scrape_shows_what_was_recorded_in_openmetrics() -> None:
    metrics = Metrics("scheduler")
    metrics.counter(scheduler.BATCHES).labels("toy", "full").inc(3)
    async with metrics.serving("127.0.0.1:0") as address:
        text = await asyncio.to_thread(_get, address)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["headrace_batches_total", "toy", "full"] == 3
    assert not any(name[0].endswith("_created") for name in samples)
    assert ("process_resident_memory_bytes",) in samples


async def test_an_observation_names_its_trace_where_that_is_kept() -> None:
    metrics = Metrics("scheduler")
    waits = metrics.histogram(scheduler.QUEUE_WAIT_SECONDS)
    waits.labels("normal", "slots").observe(0.3, exemplar(TRACED))
    waits.labels("batch", "slots").observe(0.3, exemplar(UNTRACED))
    async with metrics.serving("127.0.0.1:0") as address:
        text = await asyncio.to_thread(_get, address)
    named = [line for line in text.splitlines() if "trace_id" in line]
    assert len(named) == 1
    assert 'class="normal"' in named[0]
    assert f'trace_id="{0xABC:032x}"' in named[0]


async def test_what_is_read_when_scraped_is_read_on_the_event_loop() -> None:
    metrics, threads = Metrics("scheduler"), []
    gauge = metrics.gauge(scheduler.QUEUE_LIMIT_REQUESTS)

    def refresh() -> None:
        threads.append(threading.current_thread())
        gauge.set(len(threads))

    metrics.before_scrape(refresh)
    async with metrics.serving("127.0.0.1:0") as address:
        assert "headrace_queue_limit_requests 1.0" in await asyncio.to_thread(_get, address)
        assert "headrace_queue_limit_requests 2.0" in await asyncio.to_thread(_get, address)
    assert set(threads) == {threading.current_thread()}


async def test_services_of_one_process_do_not_mix() -> None:
    one, other = Metrics("executor"), Metrics("encoder")
    one.gauge(device.SLOTS).set(7)
    other.gauge(device.SLOTS).set(9)
    async with one.serving("127.0.0.1:0") as first, other.serving("127.0.0.1:0") as second:
        assert "headrace_slots 7.0" in await asyncio.to_thread(_get, first)
        assert "headrace_slots 9.0" in await asyncio.to_thread(_get, second)


async def test_an_address_in_use_is_a_fault_of_settings() -> None:
    async with Metrics("executor").serving("127.0.0.1:0") as taken:
        with pytest.raises(ConfigError, match=taken):
            async with Metrics("encoder").serving(taken):
                pass


async def test_no_address_no_server() -> None:
    before = threading.active_count()
    async with Metrics("executor").serving("") as address:
        assert address == ""
        assert threading.active_count() == before


def test_a_service_has_its_own_metrics_only() -> None:
    with pytest.raises(ValueError, match="headrace_batches_total"):
        Metrics("gateway").counter(scheduler.BATCHES)
    with pytest.raises(ValueError, match="counter"):
        Metrics("scheduler").gauge(scheduler.BATCHES)


def test_asked_for_twice_it_is_the_same() -> None:
    metrics = Metrics("scheduler")
    assert metrics.counter(scheduler.BATCHES) is metrics.counter(scheduler.BATCHES)


def test_a_total_is_followed_and_never_falls() -> None:
    metrics = Metrics("scheduler")
    total = Total(metrics.counter(scheduler.DISPLACEMENTS))
    for value in (2, 5, 5, 1, 4):  # whoever keeps it began anew
        total.is_now(value)
    assert metrics.registry.get_sample_value("headrace_displacements_total") == 8
