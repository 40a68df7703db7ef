"""The list of metrics, the page and dashboards made from it, and the rules that speak of it."""

import importlib.util
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from headrace.chassis.metric_table.metric import Kind
from headrace.chassis.metric_table.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
METRIC = re.compile(r"\bheadrace_[a-z0-9_]+")
RECORDED = re.compile(r"\bheadrace:[a-z0-9_:]+")


def _dashboards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboards", ROOT / "tools" / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _scraped() -> set[str]:
    """Every series name that the metrics are scraped as."""
    names = set()
    for metric in TABLE.values():
        names.add(metric.name)
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
    return names


def _rules(file: str) -> list[dict[str, object]]:
    groups = yaml.safe_load((PROMETHEUS / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_counters_and_seconds_are_named_as_prometheus_names_them() -> None:
    for metric in TABLE.values():
        assert METRIC.fullmatch(metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        if metric.unit in ("seconds", "bytes"):
            assert f"_{metric.unit}" in metric.name
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_every_metric_says_what_it_means_and_what_to_do() -> None:
    for metric in TABLE.values():
        assert metric.meaning.endswith("."), metric.name
        assert metric.when_high.endswith("."), metric.name
        assert "|" not in metric.meaning + metric.when_high


def test_no_label_names_a_caller() -> None:
    assert not {"tenant", "request", "request_id", "trace_id"} & {
        label for metric in TABLE.values() for label in metric.labels
    }


def test_made_files_are_what_the_list_gives() -> None:
    for path, text in _dashboards().files():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python tools/dashboards.py"


def test_every_metric_has_one_panel() -> None:
    texts = [path.read_text() for path in (ROOT / "deploy" / "grafana").glob("*.json")]
    titles = [panel["title"] for text in texts for panel in json.loads(text)["panels"]]
    assert len(titles) == len(set(titles))
    for name in TABLE:
        assert sum(name in text for text in texts) == 1, name


@pytest.mark.parametrize("file", ["recording.yml", "alerts.yml"])
def test_rules_speak_of_metrics_and_records_that_there_are(file: str) -> None:
    recorded = {str(rule["record"]) for rule in _rules("recording.yml")}
    for rule in _rules(file):
        assert set(METRIC.findall(str(rule["expr"]))) <= _scraped(), rule
        assert set(RECORDED.findall(str(rule["expr"]))) <= recorded, rule


def test_dashboards_speak_of_records_that_there_are() -> None:
    recorded = {str(rule["record"]) for rule in _rules("recording.yml")}
    for path in (ROOT / "deploy" / "grafana").glob("*.json"):
        assert set(RECORDED.findall(path.read_text())) <= recorded


def test_every_alert_has_a_severity_a_summary_and_a_runbook() -> None:
    sections = {heading.lower() for heading in re.findall(r"^## (\w+)$", (ROOT / "docs/runbooks.md").read_text(), re.M)}
    alerts = _rules("alerts.yml")
    for alert in alerts:
        labels, annotations = alert["labels"], alert["annotations"]
        assert isinstance(labels, dict)
        assert isinstance(annotations, dict)
        assert labels["severity"] in ("critical", "warning")
        assert annotations["summary"]
        assert annotations["runbook_url"] == f"docs/runbooks.md#{str(alert['alert']).lower()}"
    assert {str(alert["alert"]).lower() for alert in alerts} == sections


def test_every_alert_is_seen_to_fire() -> None:
    tests = yaml.safe_load((PROMETHEUS / "tests" / "alerts.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case["exp_alerts"]}
    assert fired == {alert["alert"] for alert in _rules("alerts.yml")}


def test_every_record_is_worked_out() -> None:
    tests = yaml.safe_load((PROMETHEUS / "tests" / "recording.yml").read_text())["tests"]
    asked = [case["expr"] for test in tests for case in test["promql_expr_test"] if case["exp_samples"]]
    for rule in _rules("recording.yml"):
        assert any(re.search(rf"{rule['record']}\b", expression) for expression in asked), rule["record"]


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "config", "prometheus.yml"),
        ("promtool", "check", "rules", "--lint-fatal", "recording.yml", "alerts.yml"),
        ("promtool", "test", "rules", "tests/recording.yml", "tests/alerts.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ],
    ids=["config", "rules", "tests", "alertmanager"],
)
def test_prometheus_own_checkers_are_content(program: Callable[[str], str], command: tuple[str, ...]) -> None:
    _run(program(command[0]), *command[1:])


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "pager"), ("warning", "tickets")])
def test_alerts_reach_whom_they_are_for(program: Callable[[str], str], severity: str, receiver: str) -> None:
    routing = ("config", "routes", "test", "--config.file=alertmanager.yml", f"severity={severity}")
    assert _run(program("amtool"), *routing).split() == [receiver]


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_collector_is_wired_to_parts_that_it_has() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "otel" / "collector.yml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(config[part])
