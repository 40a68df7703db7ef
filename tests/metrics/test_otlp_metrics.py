"""Metrics by OTLP: a receiver gets of each service what a scraper would see."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as pb
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

from headrace.chassis.config import TelemetrySettings, load_settings
from headrace.chassis.metric_export import exporting, to_otlp
from headrace.chassis.metric_table import scheduler as table
from headrace.chassis.metrics import Metrics
from headrace.client import AsyncClient
from headrace.models import reference
from headrace.standalone.single import running


class Receiver(MetricsServiceServicer):
    """Keeps the last export of each service, metrics by name."""

    def __init__(self) -> None:
        self.by_service: dict[str, dict[str, Any]] = {}
        self.num_exports = 0

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_metrics:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            metrics = {each.name: each for scope in resource.scope_metrics for each in scope.metrics}
            self.by_service[attributes["service.name"]] = metrics
        self.num_exports += 1
        return pb.ExportMetricsServiceResponse()


@asynccontextmanager
async def receiving() -> AsyncIterator[tuple[Receiver, str]]:
    """A receiver and its address."""
    server, receiver = grpc.aio.server(), Receiver()
    add_MetricsServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_each_service_of_a_suite_sends_its_own(tmp_path: Path) -> None:
    model, anywhere = reference.install(tmp_path).info.name, {"listen": "127.0.0.1:0"}
    async with receiving() as (receiver, endpoint):
        settings = load_settings(
            overrides={
                "models": {"home": tmp_path},
                "gateway": anywhere,
                "scheduler": anywhere,
                "executor": anywhere | {"engine": "reference", "models": [model]},
                "encoder": {"model": ""},
                "telemetry": {"metrics_endpoint": endpoint, "metrics_interval_s": 0.1},
            }
        )
        async with running(settings) as suite, AsyncClient(suite.gateway) as client:
            await client.generate(model, "abcd", max_tokens=5, ignore_eos=True, timeout_s=60)
        # each has sent once more as it left
        assert set(receiver.by_service) == {"headrace-gateway", "headrace-scheduler", "headrace-executor"}
        gateway, executor = (receiver.by_service[f"headrace-{name}"] for name in ("gateway", "executor"))
    (requests,) = gateway["headrace_requests_total"].sum.data_points
    assert requests.as_double == 1
    assert {each.key: each.value.string_value for each in requests.attributes}["outcome"] == "ok"
    (first,) = gateway["headrace_ttft_seconds"].histogram.data_points
    assert first.count == sum(first.bucket_counts) == 1
    assert executor["headrace_slots"].gauge.data_points[0].as_double > 0


async def test_a_receiver_that_is_away_does_not_hinder(caplog: Any) -> None:
    settings = TelemetrySettings(metrics_endpoint="http://127.0.0.1:1")
    async with exporting(Metrics("scheduler"), "scheduler", "one", settings):
        pass
    assert "metrics are not taken by 127.0.0.1:1" in caplog.text


async def test_without_an_endpoint_nothing_is_sent(monkeypatch: Any) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", raising=False)
    async with receiving() as (receiver, endpoint):
        async with exporting(Metrics("scheduler"), "scheduler", "one", TelemetrySettings(metrics_interval_s=0.01)):
            await asyncio.sleep(0.1)
        assert receiver.num_exports == 0
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
        async with exporting(Metrics("scheduler"), "scheduler", "one", TelemetrySettings()):
            pass
        assert receiver.num_exports == 1


def test_totals_and_buckets_are_those_of_a_scrape() -> None:
    metrics = Metrics("scheduler")
    metrics.counter(table.BATCHES).labels("toy", "full").inc(3)
    waits = metrics.histogram(table.QUEUE_WAIT_SECONDS)
    for wait_s in (0.001, 0.3, 0.3, 1_000.0):
        waits.labels("normal", "slots").observe(wait_s)
    metrics.gauge(table.QUEUE_LIMIT_REQUESTS).set(7)
    request = to_otlp(metrics.registry.collect(), {"service.name": "a"}, 5, 9)
    made = {each.name: each for each in request.resource_metrics[0].scope_metrics[0].metrics}
    total = made["headrace_batches_total"].sum
    assert total.is_monotonic
    assert (total.data_points[0].as_double, total.data_points[0].start_time_unix_nano) == (3, 5)
    (seen,) = made["headrace_queue_wait_seconds"].histogram.data_points
    assert list(seen.explicit_bounds) == list(table.QUEUE_WAIT_SECONDS.buckets)
    assert len(seen.bucket_counts) == len(seen.explicit_bounds) + 1
    between = dict(zip((*seen.explicit_bounds, float("inf")), seen.bucket_counts, strict=True))
    assert {edge: count for edge, count in between.items() if count} == {0.005: 1, 0.5: 2, float("inf"): 1}
    assert (seen.count, seen.sum) == (4, 1_000.601)
    assert made["headrace_queue_limit_requests"].gauge.data_points[0].as_double == 7
