"""`headrace up`: the whole suite on this machine, until Ctrl-C."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.chassis.config import AUTO_ENCODER, Settings, load_settings
from headrace.chassis.telemetry import configure_logging
from headrace.cli.services import Config
from headrace.core.errors import ModelNotFound
from headrace.core.screening import ScreenPolicy
from headrace.models.repository import Repository
from headrace.standalone.process import CUT_SHORT
from headrace.standalone.services import Suite
from headrace.standalone.stopping import stop_signals
from headrace.standalone.suite import suite
from headrace.standalone.supervisor import ServiceFailed

DEFAULT_ENCODER = "minilm"


class Preprocess(StrEnum):
    """Where prompts are tokenised: in the gateway, or in a service of its own."""

    INLINE = "inline"
    REMOTE = "remote"


Single = Annotated[bool, typer.Option("--single", help="All services in one process.")]
Where = Annotated[Preprocess | None, typer.Option("--preprocess", help="Where prompts are tokenised.")]
Screened = Annotated[
    ScreenPolicy | None, typer.Option("--screen", help="What to do about harmful prompts; default: as set, else off.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=1,
        max=65_000,
        metavar="N",
        help="GET /metrics: the scheduler's at N, the others' after it.",
    ),
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Start a service's process again where it ends by itself; not with --single.")
]
Models = Annotated[
    list[str] | None, typer.Option("--model", metavar="NAME", help="A model to serve; may be given several times.")
]

Precisions = Annotated[
    str | None,
    typer.Option(
        "--precision", metavar="NAMES", help="An executor for each, as int8,fp32; default: the model's own, one."
    ),
]

TlsDir = Annotated[
    Path | None, typer.Option("--tls", metavar="DIR", help="Certificates of all roles; see `headrace certs`.")
]

Http = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="Where OpenAI's clients are served; default: nowhere.")
]


def up(
    config: Config = None,
    single: Single = False,
    preprocess: Where = None,
    model: Models = None,
    screen: Screened = None,
    metrics_port: MetricsPort = None,
    restart: Restart = False,
    precision: Precisions = None,
    http: Http = None,
    tls: TlsDir = None,
) -> None:
    """Start every service on this machine and keep them running until Ctrl-C."""

    async def keep_serving(suite: Suite) -> bool:
        return True

    settings = with_encoder(suite_settings(config, preprocess, model, screen, metrics_port, precision, http, tls))
    raise typer.Exit(serve(settings, single, keep_serving, restart=restart))


def with_encoder(settings: Settings) -> Settings:
    """The settings with an encoder that they leave to us: the default one where it is installed, else none."""
    if settings.encoder.model != AUTO_ENCODER:
        return settings
    model = DEFAULT_ENCODER if DEFAULT_ENCODER in Repository(settings.models.home).names() else ""
    return settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"model": model})})


def suite_settings(
    config: Path | None,
    preprocess: Preprocess | None,
    models: list[str] | None,
    screen: ScreenPolicy | None = None,
    metrics_port: int | None = None,
    precision: str | None = None,
    http: str | None = None,
    tls: Path | None = None,
) -> Settings:
    """The settings with the command's options on top. Raises ConfigError, ModelNotFound."""
    executor = {"models": models or None, "precision": precision}
    overrides: dict[str, dict[str, Any]] = {"executor": {key: value for key, value in executor.items() if value}}
    if screen is not None:
        overrides["screen"] = {"policy": screen}
    if metrics_port is not None:
        overrides["telemetry"] = {"metrics_listen": f"127.0.0.1:{metrics_port}"}
    if preprocess is Preprocess.REMOTE:
        overrides["gateway"] = {"preprocess": load_settings(config).preprocess.listen}
    elif preprocess is Preprocess.INLINE:
        overrides["gateway"] = {"preprocess": "inline"}
    if http is not None:
        overrides["gateway"] = overrides.get("gateway", {}) | {"http_listen": http}
    if tls is not None:
        overrides["transport"] = {"tls": {"dir": tls}}
    settings = load_settings(config, overrides)
    repository = Repository(settings.models.home)
    for name in settings.executor.models:
        if name not in repository.names():
            installed = ", ".join(repository.names()) or "none"
            raise ModelNotFound(
                f"model {name!r} is not installed (installed: {installed}); run: headrace models add {name}"
            )
    return settings


def serve(settings: Settings, single: bool, body: Callable[[Suite], Awaitable[bool]], *, restart: bool = False) -> int:
    """Runs a suite around `body`, then, where that returns True, until a signal. Returns the exit code."""
    configure_logging("headrace", settings.telemetry.model_copy(update={"log_level": "WARNING"}))
    try:
        asyncio.run(_serve(settings, single, body, restart))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return CUT_SHORT
    except ServiceFailed as failed:
        if failed.log_tail:
            print(failed.log_tail, file=sys.stderr)
        raise
    return 0


async def _serve(settings: Settings, single: bool, body: Callable[[Suite], Awaitable[bool]], restart: bool) -> None:
    console = Console(stderr=True, highlight=False)

    def on_serving(name: str, address: str) -> None:
        console.print(f"  [green]●[/] {name:<13} {address}")

    with stop_signals() as stop:
        async with suite(settings, single, on_serving, restart=restart) as running:
            if await body(running):
                scheme = "https" if settings.transport.tls else "http"
                if settings.gateway.http_listen:
                    console.print(f"OpenAI clients: {scheme}://{settings.gateway.http_listen}/v1", soft_wrap=True)
                console.print(f"ready: headrace generate --chat 'Hello' --address {running.gateway}", soft_wrap=True)
                await stop.wait()
                console.print("draining …")
