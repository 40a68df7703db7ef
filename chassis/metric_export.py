"""A service's metrics by OTLP, beside or instead of being scraped: all of them every few seconds, as totals so far.

They are read from where they are scraped, so that both say the same; names are as scraped.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from headrace.chassis.config import TelemetrySettings
from headrace.chassis.metrics import Metrics

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
_CUMULATIVE = otlp.AGGREGATION_TEMPORALITY_CUMULATIVE


@asynccontextmanager
async def exporting(metrics: Metrics, service: str, instance: str, settings: TelemetrySettings) -> AsyncIterator[None]:
    """Sends the service's metrics to `settings.metrics_endpoint`, else where OTEL_EXPORTER_OTLP_METRICS_ENDPOINT says,
    else nowhere, until the block ends, and once more then. A receiver that is away is waited for with the next."""
    endpoint = settings.metrics_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "")
    if not endpoint:
        yield
        return
    scheme, _, address = endpoint.rpartition("://")
    open_channel = grpc.aio.insecure_channel if scheme in ("", "http") else _secure
    attributes = {
        "service.name": f"headrace-{service}",
        "service.namespace": "headrace",
        "service.instance.id": instance,
    }
    begin_ns = time.time_ns()
    async with open_channel(address) as channel:
        stub = MetricsServiceStub(channel)

        async def send() -> None:
            metrics.refresh()
            families = await asyncio.to_thread(lambda: list(metrics.registry.collect()))
            request = to_otlp(families, attributes, begin_ns, time.time_ns())
            try:
                await stub.Export(request, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                log.warning("metrics are not taken by %s: %s", address, error.details())

        async def again() -> None:
            while True:
                await asyncio.sleep(settings.metrics_interval_s)
                await send()

        task = asyncio.create_task(again(), name="export metrics")
        try:
            yield
        finally:
            task.cancel()
            await send()


def _secure(address: str) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials())


def to_otlp(
    families: Iterable[Family], resource: Mapping[str, str], begin_ns: int, now_ns: int
) -> ExportMetricsServiceRequest:
    """One export of all families; `begin_ns` is when they began to count. Kinds that OTLP lacks are left out."""
    made = [metric for family in families if (metric := _metric(family, begin_ns, now_ns)) is not None]
    scope = otlp.ScopeMetrics(scope=InstrumentationScope(name="headrace"), metrics=made)
    of = otlp.ResourceMetrics(resource=Resource(attributes=_attributes(resource)), scope_metrics=[scope])
    return ExportMetricsServiceRequest(resource_metrics=[of])


def _metric(family: Family, begin_ns: int, now_ns: int) -> otlp.Metric | None:
    match family.type:
        case "counter":
            points = [
                otlp.NumberDataPoint(
                    attributes=_attributes(each.labels),
                    as_double=each.value,
                    start_time_unix_nano=begin_ns,
                    time_unix_nano=now_ns,
                )
                for each in family.samples
                if each.name.endswith("_total")
            ]
            total = otlp.Sum(data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True)
            return otlp.Metric(name=f"{family.name}_total", description=family.documentation, sum=total)
        case "gauge":
            points = [
                otlp.NumberDataPoint(attributes=_attributes(each.labels), as_double=each.value, time_unix_nano=now_ns)
                for each in family.samples
            ]
            return otlp.Metric(name=family.name, description=family.documentation, gauge=otlp.Gauge(data_points=points))
        case "histogram":
            seen = otlp.Histogram(
                data_points=_histograms(family, begin_ns, now_ns), aggregation_temporality=_CUMULATIVE
            )
            return otlp.Metric(name=family.name, description=family.documentation, histogram=seen)
    return None


def _histograms(family: Family, begin_ns: int, now_ns: int) -> list[otlp.HistogramDataPoint]:
    """One for each set of labels. Prometheus counts what is up to an edge, OTLP what is between two."""
    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = tuple((key, value) for key, value in sample.labels.items() if key != "le")
        by_labels.setdefault(labels, []).append(sample)
    points = []
    for labels, samples in by_labels.items():
        buckets = [(float(each.labels["le"]), round(each.value)) for each in samples if each.name.endswith("_bucket")]
        values = {each.name.rpartition("_")[2]: each.value for each in samples}
        upto = [0, *(count for _, count in buckets)]
        points.append(
            otlp.HistogramDataPoint(
                attributes=_attributes(dict(labels)),
                count=round(values["count"]),
                sum=values["sum"],
                bucket_counts=[later - earlier for earlier, later in pairwise(upto)],
                explicit_bounds=[edge for edge, _ in buckets[:-1]],  # the last is endless
                start_time_unix_nano=begin_ns,
                time_unix_nano=now_ns,
            )
        )
    return points


def _attributes(labels: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in labels.items()]
