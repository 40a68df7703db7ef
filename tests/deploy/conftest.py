"""What images hold, made by the script that the Dockerfile runs, and processes that run as a container has it."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = Path(sysconfig.get_path("scripts"))
INSTALL_S = 300
UID = "10001"

READ_ONLY = f"""
set -e
mount -t tmpfs -o mode=1777 tmpfs "$1"
mkdir "$1/models"
mount --bind -o ro "$2" "$1/models"
mount -o remount,bind,ro /
shift 2
exec setpriv --reuid {UID} --regid {UID} --clear-groups --no-new-privs --bounding-set=-all "$@"
"""
"""A mount namespace of its own: the root read-only, one folder that can be written, models in it read-only; no root
user, no capability."""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; fails with all that it said."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Container:
    """How a command runs as in an image: `prefix` before it, `folder` for what it writes, models at `models`."""

    prefix: tuple[str, ...]
    folder: Path
    models: Path

    def command(self, environment: Path, *arguments: str) -> list[str]:
        return [*self.prefix, str(environment / "bin" / "headrace"), *arguments]

    def variables(self, **settings: str) -> dict[str, str]:
        """All that the process sees of its surroundings."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "HEADRACE_MODELS__HOME": str(self.models),
            "HEADRACE_TELEMETRY__METRICS_LISTEN": "127.0.0.1:0",
            "PYTHONUNBUFFERED": "1",
        } | settings


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="headrace-deploy-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def installed(open_folder: Path) -> Callable[[str], Path]:
    """The environment of an image, made once: what install.sh makes of its lock file and this tree's wheel."""
    made: dict[str, Path] = {}
    wheel = _wheel(open_folder)
    env = os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}

    def install(target: str) -> Path:
        if target not in made:
            run(DEPLOY / "docker" / "install.sh", target, open_folder / target, wheel, env=env)
            made[target] = open_folder / target
        return made[target]

    return install


@pytest.fixture(scope="session")
def container(open_folder: Path) -> Container:
    """Skips where this user may not make a mount namespace."""
    home, folder = Path.home() / ".cache" / "headrace", open_folder / "writable"
    folder.mkdir()
    prefix = ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(folder), str(home))
    if sys.platform != "linux" or not (shutil.which("unshare") and shutil.which("setpriv")):
        pytest.skip("unshare and setpriv (util-linux) are not here")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a mount namespace")
    return Container(prefix, folder, folder / "models")


def _wheel(folder: Path) -> Path:
    """The wheel of a clean copy of the tree, as the Dockerfile's stage `wheel` makes it."""
    copy = folder / "source"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        source, target = ROOT / name, copy / name
        if name and source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.readlink())
        elif name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "-w", folder / "wheels", copy)
    return next((folder / "wheels").glob("*.whl"))


@pytest.fixture(scope="session")
def free_ports() -> Callable[[int], list[int]]:
    """So many ports of loopback that nobody has."""

    def find(number: int) -> list[int]:
        with ExitStack() as stack:
            bound = [stack.enter_context(socket.socket()) for _ in range(number)]
            for each in bound:
                each.bind(("127.0.0.1", 0))
            return [each.getsockname()[1] for each in bound]

    return find


@pytest.fixture
def prometheus(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Callable[[Mapping[str, int]], Any]:
    """`async with prometheus({job: port}) as address`: one that scrapes each second and has this tree's
    recording rules. Skips where it is not to be had."""
    program = shutil.which("prometheus", path=f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("prometheus is not installed: make prometheus brings it where apt-get is")

    @asynccontextmanager
    async def run(ports: Mapping[str, int]) -> AsyncIterator[str]:
        targets = {job: [{"targets": [f"127.0.0.1:{port}"]}] for job, port in ports.items()}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(DEPLOY / "prometheus" / "recording.yml")],
            "scrape_configs": [{"job_name": job, "static_configs": each} for job, each in targets.items()],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        files = (f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}")
        process = await asyncio.create_subprocess_exec(
            program, *files, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"
        )
        try:
            async with asyncio.timeout(INSTALL_S):
                while not await asyncio.to_thread(_answers, f"http://127.0.0.1:{port}/-/ready"):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            await process.wait()

    return run


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
