"""A suite with the HTTP door on a real port: the reference decoder and a tiny encoder, or a scripted executor."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import openai
import pytest

from headrace.chassis.config import load_settings
from headrace.client import Client
from headrace.models import reference
from headrace.models.add import add
from headrace.standalone.single import running

TESTS = Path(__file__).parent.parent
ANY_PORT = "127.0.0.1:0"


def _borrowed(folder: str, file: str = "conftest") -> ModuleType:
    """Another part's file as a module."""
    name = f"http_tests_{folder}_{file}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TESTS / folder / f"{file}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@dataclass(frozen=True)
class Served:
    """Addresses of the HTTP door and of the gateway's own."""

    http: str
    grpc: str

    @property
    def base_url(self) -> str:
        return f"http://{self.http}/v1"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, in_thread: Callable[..., Any]) -> Iterator[Served]:
    """Models: the reference decoder and `tiny`, which gives vectors. In a thread of its own, for all tests at once."""
    home = tmp_path_factory.mktemp("http")
    reference.install(home)
    source = _borrowed("encoding").write_bert(home / "sources" / "tiny", ())
    add(home, str(source), lambda stage, done: None, name="tiny")
    sections: dict[str, dict[str, Any]] = {
        "models": {"home": home},
        "gateway": {"listen": ANY_PORT, "http_listen": ANY_PORT},
        "scheduler": {"listen": ANY_PORT},
        "executor": {"listen": ANY_PORT, "engine": "reference", "models": (reference.NAME,)},
        "encoder": {"listen": ANY_PORT, "model": "tiny", "threads": 1, "precision": "fp32"},
        "sla": {"batch": {"total_ms": 1, "on_miss": "partial"}},
    }
    with in_thread(running(load_settings(None, sections))) as suite:
        handle: Any = suite.handles["gateway"]
        yield Served(handle.http, suite.gateway)


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def grpc_client(served: Served) -> Iterator[Client]:
    with Client(served.grpc) as client:
        yield client


@pytest.fixture
def web(served: Served) -> Iterator[httpx2.Client]:
    """Plain HTTP."""
    with httpx2.Client(base_url=f"http://{served.http}", timeout=60) as web:
        yield web


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`world(**tenants)`: the real gateway with the HTTP door between a scripted scheduler and executor; see
    tests/tenants/conftest.py."""
    make = _borrowed("tenants").make_world
    monkeypatch.setenv("HEADRACE_RESULTS__STORE", str(tmp_path / "results.db"))
    monkeypatch.setenv("HEADRACE_RESULTS__PROGRESS_S", "0.02")

    def start(gateway: dict[str, Any] | None = None, **more: Any) -> Any:
        return make({"http_listen": ANY_PORT} | (gateway or {}), **more)

    return start


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`start_up(*options)` runs `headrace up` over the reference model; see tests/e2e/conftest.py."""
    reference.install(tmp_path)
    with _borrowed("e2e").starting(tmp_path) as start:
        yield start


@pytest.fixture
def until() -> Callable[..., Any]:
    """Waits for something to come true."""
    eventually: Callable[..., Any] = _borrowed("tenants").eventually
    return eventually
