"""What stands in the images: made here by the Dockerfile's own script, since no image is built here.

A suite runs with each service in the environment of its image: the lock file's packages and nothing else, no root
user, no capability, a root that cannot be written.
"""

import json
import re
import subprocess
import sysconfig
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from headrace.client import Client

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = Path(sysconfig.get_path("scripts"))
BOUND_S = 120
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
ENGINES = {"openvino", "torch", "onnxruntime"}
HEAVY_IN = {
    "gateway": {"tokenizers", "jinja2", "limits", "redis", "uvicorn"},
    "scheduler": {"filelock", "redis"},
    "preprocess": {"tokenizers", "jinja2"},
    "executor-cpu": {"openvino"},
}
"""What of this is in an image; of HEAVY nothing else is."""
HEAVY = ENGINES | {"tokenizers", "jinja2", "limits", "uvicorn", "gguf", "safetensors", "openvino-genai", "matplotlib"}
"""Libraries of some services only. Any may have filelock and redis by way of others."""


def run(*command: str | Path, path: str = "/usr/bin:/bin") -> str:
    """What a command prints; fails with all that it said."""
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def targets() -> dict[str, list[str]]:
    """Each image and its extras."""
    lines = (DEPLOY / "docker" / "targets.txt").read_text().splitlines()
    pairs = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: extras.split(",") for name, extras in pairs}


def locked(target: str) -> dict[str, str]:
    """Package -> version in a lock file; each has a hash."""
    text = (DEPLOY / "docker" / "locks" / f"{target}.txt").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert sum("==" in line for line in text.splitlines()) == len(entries)
    return {canonicalize_name(name): version for name, version, _ in entries}


def extra_requirements(target: str) -> Iterator[Requirement]:
    """What the extras of an image ask for directly, and what every service does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending = [*targets()[target]]
    done: set[str] = set()
    wanted = list(project["dependencies"])
    while pending:
        extra = pending.pop()
        if extra in done:
            continue
        done.add(extra)
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == "headrace":
                pending += requirement.extras
            else:
                wanted.append(text)
    return map(Requirement, wanted)


@pytest.mark.parametrize("target", targets())
def test_a_lock_file_has_what_the_extras_ask_for(target: str) -> None:
    versions = locked(target)
    for requirement in extra_requirements(target):
        assert Version(versions[canonicalize_name(requirement.name)]) in requirement.specifier, "make locks"


def test_the_dockerfile_has_each_target_and_hadolint_is_content() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.M)
    assert [stage for stage in stages if f"installed-{stage}" in stages] == [*targets()]
    run(SCRIPTS / "hadolint", DEPLOY / "docker" / "Dockerfile")


def test_an_image_ends_without_root_and_with_a_health_check() -> None:
    for stage in DOCKERFILE.split("\nFROM ")[1:]:
        name = stage.partition("\n")[0].rpartition(" ")[2]
        if name in targets():
            assert stage.startswith("runtime AS "), name
            assert "\nUSER" not in stage, name
            assert "\nHEALTHCHECK" in stage, name
    assert "\nUSER 10001:10001\n" in DOCKERFILE


def test_what_is_copied_is_not_ignored() -> None:
    allowed = {
        line[1:] for line in (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    }
    for copied in re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.M):
        assert copied == "." or any(copied.startswith(name) for name in allowed), copied
    packages = {link.name for link in (ROOT / "src" / "headrace").iterdir() if link.is_symlink()}
    assert packages <= allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.parametrize("target", sorted(HEAVY_IN))
def test_an_image_has_its_service_s_libraries_alone(target: str, installed: Callable[[str], Path]) -> None:
    pip = json.loads(run(SCRIPTS / "uv", "pip", "list", "--quiet", "--format", "json", "--python", installed(target)))
    found = {canonicalize_name(each["name"]): each["version"] for each in pip}
    assert {name: version for name, version in found.items() if name != "headrace"} == locked(target)
    assert HEAVY_IN[target] <= set(found)
    assert not (HEAVY - HEAVY_IN[target]) & set(found)


def test_the_bill_of_materials_names_what_is_installed(installed: Callable[[str], Path], tmp_path: Path) -> None:
    run(DEPLOY / "docker" / "sbom.sh", installed("scheduler"), tmp_path / "bom.json", path=f"{SCRIPTS}:/usr/bin:/bin")
    bom = json.loads((tmp_path / "bom.json").read_text())
    assert bom["bomFormat"] == "CycloneDX"
    named = {canonicalize_name(each["name"]): each["version"] for each in bom["components"]}
    assert {name: version for name, version in named.items() if name != "headrace"} == locked("scheduler")


def test_a_suite_runs_with_each_service_from_its_image_alone(
    installed: Callable[[str], Path], container: Any, free_ports: Callable[[int], list[int]]
) -> None:
    ports = dict(zip(("scheduler", "preprocess", "executor", "gateway"), free_ports(4), strict=True))
    at = {service: f"127.0.0.1:{port}" for service, port in ports.items()}
    image = {"scheduler": "scheduler", "preprocess": "preprocess", "executor": "executor-cpu", "gateway": "gateway"}
    settings = {f"HEADRACE_{service.upper()}__LISTEN": address for service, address in at.items()} | {
        "HEADRACE_EXECUTOR__SCHEDULER": at["scheduler"],
        "HEADRACE_GATEWAY__SCHEDULER": at["scheduler"],
        "HEADRACE_GATEWAY__PREPROCESS": at["preprocess"],
        "HEADRACE_RESULTS__STORE": str(container.folder / "results.db"),
    }
    with ExitStack() as services:
        running = {
            service: services.enter_context(_running(container, installed(image[service]), service, settings))
            for service in at
        }
        for service, address in at.items():
            _await_health(container, installed(image[service]), service, address, running[service])
        with Client(at["gateway"]) as client:
            answer = client.generate("smollm2", "Water wheels are", max_tokens=8)
            assert answer.usage.completion_tokens == 8
        for service in reversed(running):
            running[service].terminate()
            assert running[service].wait(BOUND_S) == 0, service


def test_a_container_cannot_write_its_root(container: Any) -> None:
    for folder in ("/var/tmp", str(container.models)):
        done = subprocess.run([*container.prefix, "touch", f"{folder}/x"], capture_output=True, text=True, check=False)
        assert "Read-only file system" in done.stderr
    assert (
        subprocess.run([*container.prefix, "id", "-u"], capture_output=True, text=True, check=True).stdout == "10001\n"
    )


@contextmanager
def _running(
    container: Any, environment: Path, service: str, settings: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(container.command(environment, service), env=container.variables(**settings)) as process:
        try:
            yield process
        finally:
            process.kill()


def _await_health(
    container: Any, environment: Path, service: str, address: str, process: subprocess.Popen[bytes]
) -> None:
    """By the image's own health check."""
    end = time.monotonic() + BOUND_S
    while True:
        check = container.command(environment, "health", address, "--of", service)
        done = subprocess.run(check, env=container.variables(), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        assert process.poll() is None, f"{environment.name} has ended"
        assert time.monotonic() < end, done.stderr
