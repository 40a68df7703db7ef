"""One suite in this process that serves the real model, over gRPC and HTTP, for all tests of constrained answers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.chassis.config import default_home, load_settings
from headrace.client import Client
from headrace.standalone.single import running

ANY_PORT = "127.0.0.1:0"
START_S = 120


@dataclass(frozen=True)
class Served:
    """Addresses of the HTTP door and of the gateway's own; its services by name."""

    http: str
    grpc: str
    handles: Any


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """Wants the model: `headrace models add smollm2`."""
    sections: dict[str, dict[str, Any]] = {
        "models": {"home": default_home()},
        "gateway": {"listen": ANY_PORT, "http_listen": ANY_PORT},
        "scheduler": {"listen": ANY_PORT},
        "executor": {"listen": ANY_PORT, "models": ("smollm2",)},
        "encoder": {"model": ""},
    }
    up: Future[tuple[Served, Callable[[], None]]] = Future()

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        async with running(load_settings(None, sections)) as suite:
            handle: Any = suite.handles["gateway"]
            there = Served(handle.http, suite.gateway, suite.handles)
            up.set_result((there, lambda: loop.call_soon_threadsafe(over.set)))
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if not up.done():
                up.set_exception(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    there, stop = up.result(START_S)
    yield there
    stop()
    thread.join()


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.grpc) as client:
        yield client
