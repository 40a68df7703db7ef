"""Starts the process that builds an engine, waits for it, and says in one line what became of it."""

import json
import signal
import subprocess
import sys
from typing import Any

from headrace.core.errors import ERROR_BY_REASON, EngineFault
from headrace.executor.tensorrt.job import BuildJob

LONGEST_BUILD_S = 3_600.0


def run_build(job: BuildJob, timeout_s: float = LONGEST_BUILD_S) -> dict[str, Any]:
    """The builder's figures. Raises what the builder raised, or EngineFault where it died or took too long."""
    command = [sys.executable, "-m", "headrace.executor.tensorrt.build"]
    try:
        done = subprocess.run(
            command, input=job.to_json(), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineFault(f"the builder took over {timeout_s:g} s for {_what(job)}") from None
    try:
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise EngineFault(f"the builder died of {_cause(done)} at {_what(job)}") from None
    if "error" in said:
        error = ERROR_BY_REASON.get(said["reason"], EngineFault)
        raise error(said["error"], field=said["field"], limit=said["limit"])
    return said


def _cause(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return f"{name}, which is how the system ends one that takes too much memory" if name == "SIGKILL" else name
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def _what(job: BuildJob) -> str:
    return f"{job.architecture} in {job.precision}"
