"""One suite in this process that serves the real model, over gRPC and HTTP, for all tests of constrained answers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.chassis.config import default_home, load_settings
from headrace.client import Client
from headrace.standalone.single import running

ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True)
class Served:
    """Addresses of the HTTP door and of the gateway's own; its services by name."""

    http: str
    grpc: str
    handles: Any


@pytest.fixture(scope="session")
def served(in_thread: Callable[..., Any]) -> Iterator[Served]:
    """Wants the model: `headrace models add smollm2`."""
    sections: dict[str, dict[str, Any]] = {
        "models": {"home": default_home()},
        "gateway": {"listen": ANY_PORT, "http_listen": ANY_PORT},
        "scheduler": {"listen": ANY_PORT},
        "executor": {"listen": ANY_PORT, "models": ("smollm2",)},
        "encoder": {"model": ""},
    }
    with in_thread(running(load_settings(None, sections))) as suite:
        handle: Any = suite.handles["gateway"]
        yield Served(handle.http, suite.gateway, suite.handles)


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.grpc) as client:
        yield client
