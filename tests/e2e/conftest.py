"""`headrace up` as a user runs it: a process of its own, on ports that the system chooses."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from headrace.chassis.config import default_home
from headrace.models import reference

BOUND_S = 120
STATUS = re.compile(r"● (\w+) +(\S+:\d+)")
CONFIG = """
[models]
home = "{home}"
[transport]
drain_s = 20
[gateway]
listen = "127.0.0.1:0"
[scheduler]
listen = "127.0.0.1:0"
[executor]
listen = "127.0.0.1:0"
engine = "{engine}"
models = ["{model}"]
[encoder]
model = ""
[preprocess]
listen = "127.0.0.1:0"
"""


@dataclass(frozen=True)
class Up:
    """The process of a `headrace up`, and where its standard error goes."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def ready(self) -> dict[str, str]:
        """The address of each service, once the suite is ready. Fails where it does not become so."""
        give_up = time.monotonic() + BOUND_S
        while "ready:" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > give_up:
                pytest.fail(f"the suite did not become ready:\n{self.log.read_text()}")
            time.sleep(0.05)
        return dict(STATUS.findall(self.log.read_text()))

    def ended(self) -> tuple[int, list[str]]:
        """The exit code and the lines on standard error. Fails where it does not end."""
        return self.process.wait(BOUND_S), self.log.read_text().splitlines()

    def interrupt(self) -> None:
        """What Ctrl-C sends."""
        self.process.send_signal(signal.SIGINT)

    def services(self) -> dict[str, int]:
        """Process id of each service that runs."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue  # it has ended meanwhile
            if parent == self.process.pid and "headrace.standalone.process" in command:
                found[command[-2]] = int(folder.name)
        return found


class StartUp(Protocol):
    """Starts `headrace up` with these options; ends it with the fixture."""

    def __call__(
        self, *options: str, engine: str = ..., model: str = ..., home: Path = ..., **environment: str
    ) -> Up: ...


@contextmanager
def starting(folder: Path) -> Iterator[StartUp]:
    """Whatever was started is drained at the end, killed where that takes too long."""
    with ExitStack() as stack:

        def start(
            *options: str,
            engine: str = "reference",
            model: str = reference.NAME,
            home: Path = folder,
            **environment: str,
        ) -> Up:
            config, log = folder / "headrace.toml", folder / "up.log"
            config.write_text(CONFIG.format(home=home, engine=engine, model=model))
            with log.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, "-m", "headrace.cli.main", "up", "--config", str(config), *options],
                    env=_clean_environment() | environment,
                    stderr=stderr,
                    process_group=0,
                )
            stack.callback(_stop, process)
            return Up(process, log)

        yield start


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OTEL_"))}


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(BOUND_S)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    """`start_up(*options)` runs `headrace up` over the reference model, in a home of its own."""
    reference.install(tmp_path)
    with starting(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway's address of a suite, one process a service, that serves the real smollm2."""
    with starting(tmp_path_factory.mktemp("smollm2")) as start:
        yield start(engine="openvino", model="smollm2", home=default_home()).ready()["gateway"]
