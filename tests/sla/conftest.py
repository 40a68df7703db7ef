"""The gateway tests' world, with a result store in a folder of the test's own."""

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from headrace.client import AsyncClient
from headrace.gateway.app import start

_FILE = Path(__file__).parent.parent / "gateway" / "conftest.py"


def _gateway_world() -> Any:
    name = "gateway_world"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _FILE)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """`world(sla__normal__total_ms=…, results__ttl_s=…)`: settings by section and name."""
    monkeypatch.setenv("HEADRACE_RESULTS__STORE", str(tmp_path / "results.db"))
    monkeypatch.setenv("HEADRACE_RESULTS__PROGRESS_S", "0.02")

    def make(**settings: Any) -> AbstractAsyncContextManager[Any]:
        for name, value in settings.items():
            monkeypatch.setenv(f"HEADRACE_{name.upper()}", str(value))
        opened: AbstractAsyncContextManager[Any] = _gateway_world().make_world()
        return opened

    return make


@pytest.fixture
def until() -> Any:
    """`await until(condition)` fails the test if the condition does not come true."""
    return _gateway_world().eventually


@pytest.fixture
def beside() -> Callable[..., AbstractAsyncContextManager[AsyncClient]]:
    """`beside(world, ttl_s=…)`: a client of another gateway with the world's scheduler, executor and store."""

    @asynccontextmanager
    async def open_another(world: Any, **results: Any) -> AsyncIterator[AsyncClient]:
        kept = world.settings.results.model_copy(update=results)
        settings, texts = world.settings.model_copy(update={"results": kept}), _gateway_world().ByteTexts()
        tracer = TracerProvider().get_tracer("another")
        async with (
            start(settings, tracer, world.preparer, texts) as handle,
            AsyncClient(handle.address, retries=0) as client,
        ):
            yield client

    return open_another
