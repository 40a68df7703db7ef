"""A real redis-server for those who share something through one."""

import os
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

START_S = 20


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
