"""`headrace gateway|scheduler|executor|preprocess`: one service in the foreground, for a deployment of its own."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from headrace.chassis.config import load_settings
from headrace.standalone import process
from headrace.standalone.services import Service

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML settings; HEADRACE_* variables go on top.")
]


def gateway(config: Config = None) -> None:
    """Run a gateway: the public gRPC contract."""
    _run(Service.GATEWAY, config)


def scheduler(config: Config = None) -> None:
    """Run a scheduler: who goes when, where and with whom."""
    _run(Service.SCHEDULER, config)


def executor(config: Config = None) -> None:
    """Run an executor: the engine of one device."""
    _run(Service.EXECUTOR, config)


def preprocess(config: Config = None) -> None:
    """Run a preprocess service: chat template and tokeniser for gateways that do not do it inline."""
    _run(Service.PREPROCESS, config)


def _run(service: Service, config: Path | None) -> None:
    log = logging.getLogger("headrace")
    raise typer.Exit(
        process.run(service, load_settings(config), lambda address: log.info("%s listens on %s", service, address))
    )
