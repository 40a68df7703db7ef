"""Draws docs/images/terminal.svg from what `headrace demo --once` prints, run now on this machine.

python tools/screenshot.py
"""

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "terminal.svg"
COLUMNS = 110
COMMAND = ["headrace", "demo", "--once"]


def main() -> int:
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "COLORTERM": "truecolor"}
    shown = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *COMMAND[1:]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if shown.returncode != 0:
        print(shown.stdout, file=sys.stderr)
        return shown.returncode
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), " ".join(COMMAND)))
    console.print(Text.from_ansi(shown.stdout))
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    image = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="headrace"), flags=re.DOTALL)
    IMAGE.write_text(image, encoding="utf-8")  # without fonts from the network: the viewer's own will do
    return 0


if __name__ == "__main__":
    sys.exit(main())
