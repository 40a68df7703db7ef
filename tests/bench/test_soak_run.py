"""`headrace soak` on the reference engine: every invariant holds; where one does not, the exit code says so."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.benchmarks.soak.invariants import Check
from headrace.cli import soak as command
from headrace.cli.main import app
from headrace.models import reference

CHECKS = 7
PATIENCE_S = 600


def test_half_a_minute(tmp_path: Path) -> None:
    reference.install(tmp_path)
    settings = {
        "HEADRACE_MODELS__HOME": str(tmp_path),
        "HEADRACE_EXECUTOR__ENGINE": "reference",
        "HEADRACE_EXECUTOR__REFERENCE_STEP_MS": "10",
        "HEADRACE_EXECUTOR__NUM_SLOTS": "8",
        "HEADRACE_TRANSPORT__DRAIN_S": "5",
        "COLUMNS": "400",
    }
    shown = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "soak", "--minutes", "0.5", "--model", reference.NAME],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count(" yes ") == CHECKS, shown.stdout
    assert {name for name in ("executor", "scheduler", "gateway") if f"\n{name} " in f"\n{shown.stderr}"} == {
        "executor",
        "scheduler",
        "gateway",
    }


def test_an_invariant_that_does_not_hold_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def found(*_: Any) -> list[Check]:
        return [Check("calls", True, "all there"), Check("nothing held", False, "gateway permits 3, was 0")]

    reference.install(tmp_path)
    monkeypatch.setenv("HEADRACE_MODELS__HOME", str(tmp_path))
    monkeypatch.setattr(command, "run", found)
    shown = CliRunner().invoke(app, ["soak", "--model", reference.NAME])
    assert shown.exit_code == 1
    assert "gateway permits 3, was 0" in shown.output
