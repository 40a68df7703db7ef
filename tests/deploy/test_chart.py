"""The chart, rendered by Helm itself for three value sets and a plain HPA: objects in form, names that lead somewhere.

Kubernetes' own kinds are held against its schemas, strictly; those of KEDA, the Prometheus operator and cert-manager
against schemas in schemas/, which know what the chart uses of them.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError
from helm_python.chart import lint

from headrace.chassis.config import Settings, load_settings

ROOT = Path(__file__).resolve().parents[2]
HELM = ROOT / "deploy" / "helm"
SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = "1.33"
SETS = ("small", "fleet", "batch-only", "hpa")
RECORDED = re.compile(r"\bheadrace:[a-z0-9_:]+")

Object = dict[str, Any]


def values(name: str) -> Object:
    """A value set; `hpa` is the fleet with plain HPAs."""
    if name == "hpa":
        return values("fleet") | {"autoscaling": {"kind": "hpa"}}
    loaded: Object = yaml.safe_load((HELM / "values" / f"{name}.yaml").read_text())
    return loaded


def rendered(over: Object) -> list[Object]:
    with Chart.load(HELM / "headrace") as chart:
        files = chart.render(over, name="headrace", namespace="serving")
    texts = (text for name, text in files.items() if not name.endswith("NOTES.txt"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


@cache
def objects(name: str) -> list[Object]:
    return rendered(values(name))


def of(name: str, kind: str) -> dict[str, Object]:
    """The objects of a kind by their names."""
    return {each["metadata"]["name"]: each for each in objects(name) if each["kind"] == kind}


def deployments() -> Iterator[tuple[str, Object]]:
    return ((name, each) for name in SETS for each in of(name, "Deployment").values())


def pods() -> Iterator[tuple[str, Object]]:
    """The value set and the pod's spec of each workload."""
    for name in SETS:
        for kind in ("Deployment", "Job"):
            yield from ((name, each["spec"]["template"]["spec"]) for each in of(name, kind).values())


def selected(name: str, labels: Mapping[str, str]) -> list[Object]:
    """The deployments whose pods have these labels."""
    found = of(name, "Deployment").values()
    return [each for each in found if labels.items() <= each["spec"]["template"]["metadata"]["labels"].items()]


def settings(name: str, deployment: Object) -> Settings:
    """A service's settings as it reads them: its file, and its variables on top."""
    config = of(name, "ConfigMap")[deployment["metadata"]["name"]]["data"]["headrace.toml"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    over: dict[str, dict[str, Any]] = tomllib.loads(config)
    for variable in container.get("env", ()):
        section, _, key = variable["name"].removeprefix("HEADRACE_").lower().partition("__")
        if not key or "__" in key:
            continue
        value = variable.get("value", "redis://redis.example.org:6379").replace("$(POD_IP)", "10.0.0.1")
        over.setdefault(section, {})[key] = value
    return load_settings(overrides=over)


@pytest.mark.parametrize("name", SETS)
def test_the_linter_is_content(name: str) -> None:
    report = lint(HELM / "headrace", values(name), strict=True, kube_version=f"v{KUBERNETES}.0")
    assert report["errors"] == []
    assert {message["error"] for message in report["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("name", SETS)
def test_each_object_is_in_form(name: str) -> None:
    for each in objects(name):
        own = SCHEMAS / f"{each['kind']}.yml"
        if own.exists():
            jsonschema.validate(each, yaml.safe_load(own.read_text()))
        else:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_the_schemas_find_faults() -> None:
    scaled = next(iter(of("fleet", "ScaledObject").values()))
    with pytest.raises(jsonschema.ValidationError, match="maxReplicas"):
        jsonschema.validate(
            scaled | {"spec": scaled["spec"] | {"maxReplicas": 3}},
            yaml.safe_load((SCHEMAS / "ScaledObject.yml").read_text()),
        )
    service = next(iter(of("fleet", "Service").values()))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service | {"spec": service["spec"] | {"port": 1}}, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"gatewy": {}}, "gatewy"),
        ({"pools": {"cpu": {"target": "executor-tpu"}}}, "target"),
        ({"pools": {"cpu": {"autoscaling": {"enabled": True}}}}, "slots"),
        ({"pools": {"Upper_Case": None}}, "Upper_Case"),
        ({"scheduler": {"replicas": 2}}, "redis.url"),
        ({"tls": {"enabled": True, "certManager": {"enabled": True}}}, "tls.certManager.issuer"),
        ({"autoscaling": {"kind": "hpa"}} | {"pools": values("batch-only")["pools"]}, "kind keda"),
    ],
)
def test_wrong_values_are_refused_by_name(over: Object, word: str) -> None:
    with pytest.raises(HelmError, match=re.escape(word)):
        rendered(over)


@pytest.mark.parametrize("name", SETS)
def test_services_read_their_settings_and_listen_where_they_are_looked_for(name: str) -> None:
    services = of(name, "Service")
    for deployment in of(name, "Deployment").values():
        own = settings(name, deployment)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        service = container["args"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert getattr(own, service).listen == f"0.0.0.0:{ports['grpc']}"
        assert own.telemetry.metrics_listen == f"0.0.0.0:{ports['metrics']}"
        called = [getattr(own, service).scheduler] if service in ("gateway", "executor", "encoder") else []
        if service == "gateway" and own.gateway.preprocess != "inline":
            called.append(own.gateway.preprocess)
        for address in called:
            host, _, port = address.rpartition(":")
            assert int(port) in [each["port"] for each in services[host]["spec"]["ports"]], address
        if service in ("executor", "encoder"):
            assert getattr(own, service).advertise == f"10.0.0.1:{ports['grpc']}"


@pytest.mark.parametrize("name", SETS)
def test_each_service_leads_to_one_deployment_s_ports(name: str) -> None:
    for service in of(name, "Service").values():
        (deployment,) = selected(name, service["spec"]["selector"])
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert all(ports[each["targetPort"]] == each["port"] for each in service["spec"]["ports"])


def test_pods_are_confined_and_run_images_that_there_are() -> None:
    targets = {
        line.split()[0] for line in (ROOT / "deploy/docker/targets.txt").read_text().splitlines() if line[0] != "#"
    }
    for _, spec in pods():
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["image"].rpartition("/")[2].partition(":")[0] in targets
            assert {"requests", "limits"} <= set(container["resources"])
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}


def test_leaving_has_the_time_that_draining_takes() -> None:
    for name, deployment in deployments():
        spec = deployment["spec"]["template"]["spec"]
        lingers = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert spec["terminationGracePeriodSeconds"] > settings(name, deployment).transport.drain_s + lingers


def test_probes_ask_by_the_health_protocol() -> None:
    for name, deployment in deployments():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        port, probe = container["ports"][0]["containerPort"], container["readinessProbe"]
        if values(name).get("tls", {}).get("enabled"):
            role = "executor" if container["name"] == "encoder" else container["name"]
            assert probe["exec"]["command"] == ["headrace", "health", f"127.0.0.1:{port}", "--of", role]
        else:
            assert probe["grpc"] == {"port": port}


CALLS = {("gateway", "scheduler"), ("gateway", "preprocess"), ("gateway", "pool"), ("pool", "scheduler")}


@pytest.mark.parametrize("name", SETS)
def test_only_those_that_call_each_other_may(name: str) -> None:
    policies = of(name, "NetworkPolicy").values()
    assert len(policies) == len(of(name, "Deployment"))
    allowed = set()
    for policy in policies:
        (deployment,) = selected(name, policy["spec"]["podSelector"]["matchLabels"])
        to = deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for peer in policy["spec"]["ingress"][0]["from"]:
            for expression in peer.get("podSelector", {}).get("matchExpressions", ()):
                if expression["key"].endswith("/component"):
                    allowed |= {(one.partition("-")[0], to.partition("-")[0]) for one in expression["values"]}
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert allowed <= CALLS
    assert allowed == CALLS or not values(name).get("preprocess")


def test_the_rules_are_those_of_the_repository() -> None:
    files = (
        yaml.safe_load((ROOT / "deploy/prometheus" / each).read_text()) for each in ("recording.yml", "alerts.yml")
    )
    groups = [group for file in files for group in file["groups"]]
    assert of("fleet", "PrometheusRule")["headrace"]["spec"]["groups"] == groups


def test_jobs_are_those_that_the_rules_know() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    monitors = of("fleet", "ServiceMonitor").values()
    relabelings = (rule for each in monitors for rule in each["spec"]["endpoints"][0]["relabelings"])
    jobs = {rule["replacement"] for rule in relabelings if rule["targetLabel"] == "job"}
    assert jobs == {job["job_name"] for job in scraped if job["job_name"].startswith("headrace-")}


def test_pools_are_scaled_by_records_that_there_are() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/recording.yml").read_text())["groups"]
    recorded = {rule["record"] for group in rules for rule in group["rules"]}
    for name in ("fleet", "batch-only"):
        for scaled in of(name, "ScaledObject").values():
            assert scaled["spec"]["scaleTargetRef"]["name"] in of(name, "Deployment")
            for trigger in scaled["spec"]["triggers"]:
                used = set(RECORDED.findall(trigger["metadata"]["query"]))
                assert used
                assert used <= recorded
    adapter = yaml.safe_load((HELM / "prometheus-adapter.yml").read_text())["rules"]["external"]
    offered = {rule["name"]["as"]: rule["seriesQuery"] for rule in adapter}
    assert set(offered.values()) <= recorded
    pools = [each for key, each in of("hpa", "HorizontalPodAutoscaler").items() if "-pool-" in key]
    asked = {metric["external"]["metric"]["name"] for each in pools for metric in each["spec"]["metrics"]}
    assert asked == set(offered)
    assert len(pools) == len(of("fleet", "ScaledObject")) == 3


def test_what_is_scaled_has_no_fixed_number() -> None:
    for name in SETS:
        scaled = {each["spec"]["scaleTargetRef"]["name"] for each in of(name, "ScaledObject").values()}
        scaled |= {each["spec"]["scaleTargetRef"]["name"] for each in of(name, "HorizontalPodAutoscaler").values()}
        for deployment in of(name, "Deployment").values():
            assert ("replicas" in deployment["spec"]) == (deployment["metadata"]["name"] not in scaled)


def test_work_of_the_batch_class_alone_needs_no_executor_until_it_comes() -> None:
    (scaled,) = of("batch-only", "ScaledObject").values()
    assert scaled["spec"]["minReplicaCount"] == 0
    scheduler = settings("batch-only", of("batch-only", "Deployment")["headrace-scheduler"])
    assert scheduler.scheduler.grace_ms >= 30 * 86_400_000


def test_a_standby_may_stand_by() -> None:
    """It is never ready: nothing may wait for that."""
    scheduler = of("fleet", "Deployment")["headrace-scheduler"]
    assert scheduler["spec"]["replicas"] == 2
    assert scheduler["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "100%"}
    assert "headrace-scheduler" not in of("fleet", "PodDisruptionBudget")
    assert settings("fleet", scheduler).scheduler.leadership.startswith("redis://")
