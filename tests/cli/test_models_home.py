"""`headrace models` looks where the services look."""

import subprocess
import sys
from pathlib import Path

from headrace.models import reference


def test_the_environment_says_where_models_are(tmp_path: Path) -> None:
    reference.install(tmp_path)
    listed = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "models", "list"],
        env={"PATH": "/usr/bin", "HEADRACE_MODELS__HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert reference.NAME in listed.stdout
