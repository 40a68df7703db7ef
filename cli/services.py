"""`headrace gateway|executor|encoder|preprocess`: one service in the foreground, for a deployment of its own."""

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
    run_service(Service.GATEWAY, config)


def executor(config: Config = None) -> None:
    """Run an executor: the engine of one device."""
    run_service(Service.EXECUTOR, config)


def encoder(config: Config = None) -> None:
    """Run an encoder's executor: embeddings, reranking, classification."""
    run_service(Service.ENCODER, config)


def preprocess(config: Config = None) -> None:
    """Run a preprocess service: chat template and tokeniser for gateways that do not do it inline."""
    run_service(Service.PREPROCESS, config)


def run_service(service: Service, config: Path | None) -> None:
    """Runs the service until a signal and ends the command."""
    log = logging.getLogger("headrace")
    raise typer.Exit(
        process.run(service, load_settings(config), lambda address: log.info("%s listens on %s", service, address))
    )
