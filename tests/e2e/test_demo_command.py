"""`headrace demo --once`, which `make run ONESHOT=1` ends with: answers in each class, a trace, exit code 0."""

import os
import subprocess
import sys
from pathlib import Path

from headrace.chassis import signals
from headrace.cli.demo import QUESTIONS
from headrace.models import reference


def test_the_demo_asks_in_each_class_shows_a_trace_and_stops(tmp_path: Path) -> None:
    reference.install(tmp_path)
    anywhere = "127.0.0.1:0"
    settings = {
        "HEADRACE_MODELS__HOME": str(tmp_path),
        "HEADRACE_EXECUTOR__ENGINE": "reference",
        "COLUMNS": "120",
        **{f"HEADRACE_{service}__LISTEN": anywhere for service in ("GATEWAY", "SCHEDULER", "EXECUTOR")},
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OTEL_"))}
    shown = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "demo", "--once", "--single", "--model", reference.NAME],
        env=others | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    assert all(f"{qos}  {question}" in shown.stdout for qos, question in QUESTIONS.items())
    assert shown.stderr.count("tokens in, 64 out") == len(QUESTIONS)
    for span in (signals.GATEWAY_GENERATE, signals.SCHEDULER_QUEUE, signals.EXECUTOR_PREFILL, signals.EXECUTOR_DECODE):
        assert span in shown.stdout
