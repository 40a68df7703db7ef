"""The compose file: in form by the specification, confined, and with settings that the services accept."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from headrace.chassis.config import load_settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "compose"
DOCKERFILE = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
TEXT = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (COMPOSE / "compose.yml").read_text())
"""With each variable at its default."""
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"].startswith("headrace/")}
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="make prometheus brings promtool")


def image_environment(target: str) -> dict[str, str]:
    """What the Dockerfile sets for all images and for one."""
    stages = {part.split(" AS ")[1].split("\n")[0]: part for part in DOCKERFILE.split("\nFROM ")[1:]}
    text = "".join(stages[name].replace("\\\n", " ") for name in ("runtime", target))
    return dict(re.findall(r"\b([A-Z][A-Z0-9_]+)=(\S+)", " ".join(re.findall(r"^ENV (.*)$", text, re.M))))


def test_it_is_in_form() -> None:
    parsed = PyCompose.from_json(json.dumps(FILE))
    parsed.validate()
    assert set(parsed.service_names()) == set(SERVICES)


def test_a_fault_of_form_is_found() -> None:
    faulty = yaml.safe_load(TEXT.replace("restart: unless-stopped", "restart: whenever"))
    with pytest.raises(ValueError, match="whenever"):
        PyCompose.from_json(json.dumps(faulty))


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", service["image"]), "images have a version"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", OWN)
def test_settings_are_accepted_and_addresses_are_services(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = OWN[name]["build"]["target"]
    assert OWN[name]["image"].startswith(f"headrace/{target}:")
    variables = image_environment(target) | OWN[name].get("environment", {})
    for key, value in variables.items():
        monkeypatch.setenv(key, str(value))
    load_settings()
    for value in _addresses(variables):
        assert value in SERVICES, value


def test_what_is_mounted_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (COMPOSE / source).exists() if source.startswith(".") else source in FILE["volumes"], volume


def test_one_profile_has_an_executor_for_the_cpu_and_one_for_the_gpu() -> None:
    assert SERVICES["executor"]["profiles"] == ["cpu"]
    assert SERVICES["executor-gpu"]["profiles"] == ["gpu"]
    devices = SERVICES["executor-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices[0]["capabilities"] == ["gpu"]
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["executor", "executor-gpu"]


def test_prometheus_has_the_jobs_that_the_rules_know() -> None:
    own = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    on_this_machine = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert [job["job_name"] for job in own["scrape_configs"]] == [
        job["job_name"] for job in on_this_machine["scrape_configs"]
    ]
    for job in own["scrape_configs"]:
        assert set(job["dns_sd_configs"][0]["names"]) <= set(SERVICES)


@promtool
def test_promtool_is_content(tmp_path: Path) -> None:
    for file in (COMPOSE / "prometheus.yml", *(ROOT / "deploy" / "prometheus").glob("*.yml")):
        shutil.copy(file, tmp_path / f"{'compose-' if file.parent == COMPOSE else ''}{file.name}")
    check = ["promtool", "check", "config", "compose-prometheus.yml"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _addresses(variables: Mapping[str, str]) -> list[str]:
    """The hosts that variables name, but not those that are listened on."""
    hosts = [re.fullmatch(r"(?:\w+://)?([\w.-]+):\d+", str(value)) for value in variables.values()]
    return [host[1] for host in hosts if host and host[1] != "0.0.0.0"]
