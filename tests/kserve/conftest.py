"""A suite in this process: the reference decoder and a tiny encoder, asked through the KServe door on a real socket."""

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from headrace.api.inference.inference_pb2_grpc import GRPCInferenceServiceStub
from headrace.chassis.config import load_settings
from headrace.client import AsyncClient
from headrace.models import reference
from headrace.models.add import add
from headrace.standalone.services import Suite
from headrace.standalone.single import running

_BERTS = Path(__file__).parent.parent / "encoding" / "conftest.py"
ANY_PORT = "127.0.0.1:0"


def _berts() -> ModuleType:
    name = "kserve_tests_berts"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _BERTS)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@dataclass
class Door:
    """`stub` is the KServe door; `client` the gateway's own."""

    suite: Suite
    address: str
    stub: Any
    client: AsyncClient


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed: the reference decoder, `tiny` that gives vectors, `moods` with three labels."""
    home = tmp_path_factory.mktemp("kserve")
    reference.install(home)
    for name, labels in (("tiny", ()), ("moods", ("sad", "calm", "glad"))):
        source = _berts().write_bert(home / "sources" / name, labels)
        add(home, str(source), lambda stage, done: None, name=name)
    return home


@pytest.fixture
def door(home: Path) -> Callable[..., Any]:
    """`door("tiny", kserve={...})` runs a suite with that encoder, '' for none; settings of sections as given."""

    @asynccontextmanager
    async def start(encoder: str = "", **sections: dict[str, Any]) -> AsyncIterator[Door]:
        overrides: dict[str, dict[str, Any]] = {
            "models": {"home": home},
            "gateway": {"listen": ANY_PORT},
            "scheduler": {"listen": ANY_PORT},
            "executor": {"listen": ANY_PORT, "engine": "reference", "models": (reference.NAME,)},
            "encoder": {"listen": ANY_PORT, "model": encoder, "threads": 1, "precision": "fp32"},
        }
        for name, values in sections.items():
            overrides[name] = overrides.get(name, {}) | values
        async with (
            running(load_settings(None, overrides)) as suite,
            grpc.aio.insecure_channel(suite.gateway) as channel,
            AsyncClient(suite.gateway, retries=0) as client,
        ):
            yield Door(suite, suite.gateway, GRPCInferenceServiceStub(channel), client)

    return start
