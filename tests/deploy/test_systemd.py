"""The units: systemd's own checkers on a copy whose commands are this environment's, and commands that there are."""

import configparser
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from headrace.chassis.config import Settings, load_settings
from headrace.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
UNITS = sorted(path.name for path in SYSTEMD.glob("*.service"))
PROGRAM = Path(sysconfig.get_path("scripts")) / "headrace"
MOST_EXPOSURE = 20  # of 100: systemd calls this OK
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as installed, with the program of this environment in their commands; of a template one instance."""
    shutil.copytree(SYSTEMD, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("*.service"):
        path.write_text(path.read_text().replace("/opt/headrace/bin/headrace", str(PROGRAM)))
    return tmp_path


def _systemd_analyze(units: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{units}:/usr/lib/systemd/system:/lib/systemd/system"
    env = {"SYSTEMD_UNIT_PATH": path, "PATH": "/usr/bin:/bin"}
    return subprocess.run(["systemd-analyze", *arguments], env=env, capture_output=True, text=True, check=False)


def _instance(unit: str) -> str:
    return unit.replace("@.", "@0.")


def _parsed(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(path)
    return parser


@analyze
@pytest.mark.parametrize("unit", [*UNITS, "headrace.target"])
def test_a_unit_is_in_form(unit: str, units: Path) -> None:
    done = _systemd_analyze(units, "verify", "--man=no", _instance(unit))
    assert done.returncode == 0, done.stderr
    assert str(units) not in done.stderr, done.stderr


@analyze
def test_a_fault_of_form_is_found(units: Path) -> None:
    path = units / "headrace-gateway.service"
    path.write_text(path.read_text().replace("ExecStart=", "ExecBegin="))
    assert "ExecBegin" in _systemd_analyze(units, "verify", "--man=no", path.name).stderr


@analyze
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_confined(unit: str, units: Path) -> None:
    done = _systemd_analyze(
        units, "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE}", _instance(unit)
    )
    assert done.returncode == 0, done.stdout


def test_each_service_has_a_unit_that_runs_it() -> None:
    run = {}
    for unit in UNITS:
        command = _parsed(SYSTEMD / unit)["Service"]["ExecStart"].split()
        assert command[0] == "/opt/headrace/bin/headrace"
        assert command[1] in COMMANDS
        assert command[2:] == ["--config", "/etc/headrace/headrace.toml"]
        run[command[1]] = unit
    assert set(run) == {"scheduler", "executor", "encoder", "gateway", "preprocess"}


def test_the_target_wants_units_that_there_are() -> None:
    wanted = _parsed(SYSTEMD / "headrace.target")["Unit"]["Wants"].split()
    assert {re.sub(r"@\d+", "@", unit) for unit in wanted} <= set(UNITS)


def test_settings_are_accepted_and_stopping_takes_longer_than_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    confined = SYSTEMD / "headrace-.service.d" / "10-confined.conf"
    for path in [confined, *(SYSTEMD / unit for unit in UNITS)]:
        for name, value in re.findall(r"\b(HEADRACE_\w+)=(\S+)", "\n".join(_environment(path))):
            monkeypatch.setenv(name, value)
    load_settings()
    assert int(_parsed(confined)["Service"]["TimeoutStopSec"]) > Settings().transport.drain_s


def _environment(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("Environment=")]
