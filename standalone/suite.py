"""A whole suite on this machine, in one process or several, with a span collector where none is configured."""

import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from headrace.chassis.config import Settings
from headrace.chassis.telemetry import OWN_COLLECTOR
from headrace.core.role import Role
from headrace.standalone.services import OnServing, Suite
from headrace.standalone.single import running
from headrace.standalone.spans import collector, default_database
from headrace.standalone.supervisor import supervised

KEPT_RUNS = 20
_SPAN_RECEIVERS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@asynccontextmanager
async def suite(
    settings: Settings, single: bool, on_serving: OnServing, *, restart: bool = False
) -> AsyncIterator[Suite]:
    """A suite that is ready; drained when the block ends. Raises what `running` and `supervised` raise."""
    home = settings.models.home
    async with AsyncExitStack() as stack:
        if collects_spans(settings):
            database = default_database(home)
            transport = settings.transport.of(Role.COLLECTOR)
            address = await stack.enter_async_context(collector("127.0.0.1:0", database, transport=transport))
            scheme = OWN_COLLECTOR if transport.tls else "http"
            telemetry = settings.telemetry.model_copy(update={"endpoint": f"{scheme}://{address}"})
            settings = settings.model_copy(update={"telemetry": telemetry})
        if single:
            yield await stack.enter_async_context(running(settings, on_serving))
        else:
            yield await stack.enter_async_context(
                supervised(settings, _run_folder(home / "run"), on_serving, restart=restart)
            )


def collects_spans(settings: Settings) -> bool:
    """True where the suite keeps its spans itself, because nothing says where else they should go."""
    return not (settings.telemetry.endpoint or any(os.environ.get(name) for name in _SPAN_RECEIVERS))


def _run_folder(runs: Path) -> Path:
    """A new folder for this run's logs; the oldest ones go."""
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(parents=True)
    for old in sorted(path for path in runs.iterdir() if path.is_dir())[:-KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return folder
