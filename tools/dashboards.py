"""Writes docs/metrics.md and the Grafana dashboards from the list of metrics. `check` compares instead, exit code 1.

A dashboard for each side of the suite: what callers see, the queue, devices. Each metric has its panel, its meaning as
the panel's description; recorded ratios come first. Nothing in the files is written by hand.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.chassis.metric_table.metric import Kind, Metric
from headrace.chassis.metric_table.table import TABLE, markdown

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT, COLUMNS = 8, 7, 3

RECORDED: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "callers": (
        ("Time to first token, P99", "headrace:ttft_seconds:p99_5m", "s"),
        ("Time to first token, P50", "headrace:ttft_seconds:p50_5m", "s"),
        ("Inter-token time, P99", "headrace:inter_token_seconds:p99_5m", "s"),
        ("Promises broken", "headrace:sla_missed:ratio5m", "percentunit"),
        ("Deadlines missed", "headrace:deadline_missed:ratio5m", "percentunit"),
    ),
    "queue": (
        ("Queue wait, P99", "headrace:queue_wait_seconds:p99_5m", "s"),
        ("Fill efficiency", "headrace:fill_efficiency:ratio5m", "percentunit"),
        ("Padding waste", "headrace:padding_waste:ratio5m", "percentunit"),
        ("Scheduling share", "headrace:scheduling_share:ratio5m", "percentunit"),
    ),
    "devices": (
        ("Compute density", "headrace:compute_density:ratio5m", "percentunit"),
        ("Device busy", "headrace:device_busy:ratio5m", "percentunit"),
        ("Slots in use, share", "headrace:slots_in_use:ratio", "percentunit"),
        ("KV pressure", "headrace:kv_pressure:ratio", "percentunit"),
        ("Prefix hit rate", "headrace:prefix_hit:ratio5m", "percentunit"),
        ("Guesses that came true", "headrace:speculation_accepted:ratio5m", "percentunit"),
        ("Memory read", "headrace:memory_read:bytes_per_second5m", "Bps"),
        ("Step time, P99", "headrace:step_seconds:p99_5m", "s"),
    ),
}
SIDE = {
    "gateway": "callers",
    "preprocess": "callers",
    "scheduler": "queue",
    "executor": "devices",
    "encoder": "devices",
}
UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}


def files() -> Iterator[tuple[Path, str]]:
    """Every file that is made here, and its content."""
    yield ROOT / "docs" / "metrics.md", markdown()
    for side in RECORDED:
        text = json.dumps(dashboard(side), indent=1) + "\n"
        yield ROOT / "deploy" / "grafana" / f"{side}.json", text


def dashboard(side: str) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    panels = [_panel(title, [expression], unit, "", False) for title, expression, unit in RECORDED[side]]
    panels += [
        _panel(
            _title(each),
            expressions(each),
            _unit(each),
            f"{each.meaning} When high: {each.when_high}",
            _exemplars(each),
        )
        for each in TABLE.values()
        if SIDE[each.services[0]] == side
    ]
    for place, panel in enumerate(panels):
        panel["id"] = place + 1
        panel["gridPos"] = {
            "h": HEIGHT,
            "w": WIDTH,
            "x": place % COLUMNS * WIDTH,
            "y": place // COLUMNS * HEIGHT,
        }
    return {
        "uid": f"headrace-{side}",
        "title": f"Headrace: {side}",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def expressions(metric: Metric) -> list[str]:
    """What is drawn: rates of counters, quantiles of histograms, gauges as they are; summed by the metric's labels."""
    by = ", ".join(metric.labels)
    if metric.kind is Kind.COUNTER:
        return [f"sum by ({by}) (rate({metric.name}[$__rate_interval]))"]
    if metric.kind is Kind.GAUGE:
        return [f"sum by ({', '.join(('job', *metric.labels))}) ({metric.name})"]
    grouped = ", ".join((*metric.labels[:1], "le"))
    return [
        f"histogram_quantile({quantile}, sum by ({grouped}) (rate({metric.name}_bucket[$__rate_interval])))"
        for quantile in ("0.5", "0.99")
    ]


def _title(metric: Metric) -> str:
    words = metric.name.removeprefix("headrace_").removesuffix("_total").replace("_", " ")
    return words[0].upper() + words[1:]


def _unit(metric: Metric) -> str:
    if metric.kind is Kind.COUNTER:
        return "Bps" if metric.unit == "bytes" else "percentunit" if metric.unit == "seconds" else "cps"
    return UNITS.get(metric.unit, "short")


def _exemplars(metric: Metric) -> bool:
    return metric.kind is Kind.HISTOGRAM and metric.services == ("gateway",)


def _panel(title: str, queries: Sequence[str], unit: str, description: str, exemplars: bool) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "exemplar": exemplars, "datasource": source}
            for place, query in enumerate(queries)
        ],
    }


def main() -> int:
    """Writes what differs, or with `check` names it."""
    check = sys.argv[1:] == ["check"]
    stale = [(path, text) for path, text in files() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        print(f"{path.relative_to(ROOT)} {'is not what the list of metrics gives' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
