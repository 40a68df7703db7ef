"""One service in this process until it is told to stop: `headrace gateway`, and each child of `headrace up`.

A child of the supervisor gets its settings as one line of JSON on standard input, whose end means that the supervisor
has gone. It answers with lines of JSON on standard output: {"address": HOST:PORT} once it listens, {"error": what} if
it fails. Everything else it prints goes to standard error.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from headrace.chassis import collector
from headrace.chassis.config import Settings
from headrace.chassis.telemetry import configure_logging
from headrace.standalone.services import Service, cause
from headrace.standalone.stopping import stop_signals
from headrace.standalone.wiring import start

CUT_SHORT = 130
"""Exit code where a signal came before the service was up, or a second one while it drained."""


def run(service: Service, settings: Settings, on_listening: Callable[[str], None], supervised: bool = False) -> int:
    """Serves until a signal, drains, and returns the exit code. Raises what the service raises."""
    configure_logging(service, settings.telemetry)
    collector.relax()
    try:
        asyncio.run(_serve(service, settings, on_listening, supervised))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return CUT_SHORT
    return 0


async def _serve(service: Service, settings: Settings, on_listening: Callable[[str], None], supervised: bool) -> None:
    loop = asyncio.get_running_loop()
    with stop_signals() as stop:

        def supervisor_gone() -> None:
            if not os.read(sys.stdin.fileno(), 1):
                loop.remove_reader(sys.stdin.fileno())
                stop.ask()

        if supervised:
            loop.add_reader(sys.stdin.fileno(), supervisor_gone)
        async with start(service, settings) as handle:
            on_listening(handle.address)
            await stop.wait()


def main() -> int:
    """A child of the supervisor: `python -m headrace.standalone.process SERVICE`."""
    service = Service(sys.argv[1])
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # native libraries print to it too

    def report(**what: Any) -> None:
        reports.write(json.dumps(what) + "\n")

    settings = Settings.model_validate_json(sys.stdin.readline())
    try:
        return run(service, settings, lambda address: report(address=address), supervised=True)
    except Exception as error:
        known = cause(error)
        if known is None:
            raise
        report(error=known.message)
        return 1


if __name__ == "__main__":
    sys.exit(main())
