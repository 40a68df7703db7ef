"""Draws the pictures of docs/images from what the suite really shows, run now on this machine.

python tools/screenshot.py          # terminal.svg: what `headrace demo --once` prints
python tools/screenshot.py suite    # top.png and trace.png: a suite of smollm2 under load; wants `pip install resvg-py`
"""

import asyncio
import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from headrace.chassis.config import load_settings
from headrace.cli.figures import Figures
from headrace.cli.scraping import suite as scraping
from headrace.cli.top_view import view
from headrace.cli.waterfall import render
from headrace.client import AsyncClient
from headrace.standalone.span_reader import wait_for_trace
from headrace.standalone.spans import default_database
from headrace.standalone.suite import suite

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS = 110
COMMAND = ["headrace", "demo", "--once"]
METRICS_PORT = 19_470
MODEL = "smollm2"
CALLERS = {"realtime": 4, "normal": 10, "batch": 14}
LOAD_S, LOOK_S = 12.0, 4.0
PROMPT = "Tell a story of the river and the mill, of those who work there, and of the year the water stayed away. "
FONT = "DejaVu Sans Mono"
PICTURED = f"picture-{os.getpid()}"  # unlike those of earlier runs, whose spans may be kept


def main() -> int:
    if sys.argv[1:] == ["suite"]:
        asyncio.run(_draw_suite())
        return 0
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
    (IMAGES / "terminal.svg").write_text(_svg(" ".join(COMMAND), Text.from_ansi(shown.stdout)), encoding="utf-8")
    return 0


async def _draw_suite() -> None:
    """Callers of all classes ask again and again; what is looked at in the middle of it is drawn."""
    anywhere = {"listen": "127.0.0.1:0"}
    settings = load_settings(
        overrides={
            "gateway": anywhere,
            "scheduler": anywhere,
            "executor": anywhere | {"models": [MODEL], "num_slots": 16},
            "encoder": anywhere | {"model": ""},
            "telemetry": {"metrics_listen": f"127.0.0.1:{METRICS_PORT}"},
        }
    )
    async with suite(settings, False, lambda name, address: None) as running, AsyncClient(running.gateway) as client:
        async with asyncio.TaskGroup() as group:
            callers = [
                group.create_task(_ask(client, qos, number))
                for qos, count in CALLERS.items()
                for number in range(count)
            ]
            await asyncio.sleep(LOAD_S)
            before = await asyncio.to_thread(scraping(METRICS_PORT))
            await asyncio.sleep(LOOK_S)
            after = await asyncio.to_thread(scraping(METRICS_PORT))
            watched = asyncio.create_task(client.generate(MODEL, PROMPT, max_tokens=24, request_id=PICTURED))
            await watched
            for caller in callers:
                caller.cancel()
        spans = await wait_for_trace(default_database(settings.models.home), PICTURED, 30.0)
    _png("top", _svg("headrace top", view(Figures(before, after, LOOK_S))))
    _png("trace", _svg(f"headrace trace {PICTURED}", render(spans, COLUMNS)))


async def _ask(client: AsyncClient, qos: str, number: int) -> None:
    while True:
        await client.generate(MODEL, f"{number} {PROMPT * (1 + number % 4)}", qos=qos, max_tokens=48 + 8 * (number % 5))


def _svg(command: str, shown: RenderableType) -> str:
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), command))
    console.print(shown)
    # without fonts from the network: the viewer's own will do
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="headrace"), flags=re.DOTALL)


def _png(name: str, svg: str) -> None:
    resvg = import_module("resvg_py")
    drawn = resvg.svg_to_bytes(
        svg_string=svg.replace("Fira Code", FONT).replace(socket.gethostname(), "host"), monospace_family=FONT
    )
    (IMAGES / f"{name}.png").write_bytes(bytes(drawn))


if __name__ == "__main__":
    sys.exit(main())
