"""For tests of several parts: a real redis-server, and what is served in a thread of its own."""

import asyncio
import os
import shutil
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

Served = TypeVar("Served")

START_S = 20
SERVE_S = 120


@contextmanager
def open_redis_server(folder: Path) -> Iterator[int]:
    """Its port, once it answers. Skips where none is installed: the dev group's is made for few platforms."""
    scripts = sysconfig.get_path("scripts")
    program = shutil.which("redis-server", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if program is None:
        pytest.skip("no redis-server is installed: apt-get install redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            _await_listening(port)
            yield port
        finally:
            server.kill()


@pytest.fixture
def redis_server() -> Callable[[Path], AbstractContextManager[int]]:
    """`with redis_server(folder) as port`."""
    return open_redis_server


@contextmanager
def served_in_thread(opening: AbstractAsyncContextManager[Served]) -> Iterator[Served]:
    """What `opening` gives, held open on an event loop in a thread of its own, so that callers may block."""
    up: Future[tuple[Served, Callable[[], None]]] = Future()

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        async with opening as found:
            up.set_result((found, lambda: loop.call_soon_threadsafe(over.set)))
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if up.done():
                raise
            up.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    found, stop = up.result(SERVE_S)
    try:
        yield found
    finally:
        stop()
        thread.join(SERVE_S)


@pytest.fixture(scope="session")
def in_thread() -> Callable[[AbstractAsyncContextManager[Served]], AbstractContextManager[Served]]:
    """`with in_thread(opening) as found`."""
    return served_in_thread


def _await_listening(port: int) -> None:
    """Raises OSError where it does not come."""
    give_up = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
