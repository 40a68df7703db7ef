"""All metrics of the suite, and the page docs/metrics.md that is made from them."""

from collections.abc import Mapping
from types import ModuleType

from headrace.chassis.metric_table import device, gateway, process, scheduler, text
from headrace.chassis.metric_table.metric import Metric


def _stated(*modules: ModuleType) -> dict[str, Metric]:
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Metric)]
    return {metric.name: metric for metric in found}


TABLE: Mapping[str, Metric] = _stated(gateway, text, scheduler, device, process)
"""By name, in the order of the page."""


def markdown() -> str:
    """docs/metrics.md."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(each.services)} | "
        f"{', '.join(f'`{label}`' for label in each.labels)} | {each.unit} | {each.meaning} | {each.when_high} |"
        for each in TABLE.values()
    ]
    return "\n".join((_INTRODUCTION, *rows, ""))


_INTRODUCTION = """# Metrics

Every service answers `GET /metrics` in OpenMetrics text where `telemetry.metrics_listen` names a HOST:PORT; it is
off by default. `headrace up --metrics-port 9470` gives the scheduler that port, then the executor, the encoder, the
preprocess service and the gateway the next ones, always in this order. Latency histograms carry exemplars with trace
ids. Beside these there are Prometheus's own `process_*` metrics of each process. With `telemetry.metrics_endpoint`, or
OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, each service sends the same by OTLP/gRPC, every `telemetry.metrics_interval_s`
seconds, as totals so far and without exemplars.

Ratios are made of these by the recording rules in `deploy/prometheus/`: fill efficiency, padding waste, compute
density, scheduling share, prefix hit rate, guesses that came true, memory bandwidth use. `make prometheus` fetches
Prometheus and Alertmanager out of Debian's packages, where apt-get is; then `make test` has their checkers read and try
all rules, and `tests/metrics/test_live_prometheus.py` scrapes a suite, overloads it and sees the alerts fire and clear,
with the rules' windows and waits sixty times shorter.

This page is written by `python tools/dashboards.py` from `chassis/metric_table/`.

| name | kind | services | labels | unit | meaning | when it is high |
| --- | --- | --- | --- | --- | --- | --- |"""
