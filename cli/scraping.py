"""Where the metrics of a running suite are, and fetching them: a suite on this machine, services by their addresses, or
whatever a Prometheus scrapes."""

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from headrace.chassis.certificates import Certificates
from headrace.chassis.config import load_settings
from headrace.chassis.credentials import client_context
from headrace.cli.figures import Figures, Snapshot, parse
from headrace.cli.reach import tls
from headrace.core.errors import InvalidRequest, Unavailable
from headrace.core.role import Role
from headrace.standalone.services import Service

DEFAULT_LISTEN = "127.0.0.1:9470"
JOBS = "headrace"
"""How the names of our jobs begin in a Prometheus."""
TIMEOUT_S = 5.0
NUM_FETCHING = 16

Scrape = Callable[[], Snapshot]
"""Raises Unavailable where nobody answers."""

MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", metavar="N", help="As given to headrace up; default: as set, else 9470.")
]
At = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="HOST:PORT", help="Metrics of a service; for a fleet, given once for each."),
]
FromPrometheus = Annotated[
    str, typer.Option("--prometheus", metavar="URL", help="All services that this Prometheus scrapes.")
]


def scraping(port: int | None, addresses: Sequence[str] | None, prometheus: str, config: Path | None) -> Scrape:
    """What the command's options ask for. Raises InvalidRequest where they are more than one way to find services."""
    if (port is not None) + bool(addresses) + bool(prometheus) > 1:
        raise InvalidRequest("say one of --metrics-port, --at and --prometheus", field="at")
    if prometheus:
        return lambda: _snapshot(_targets(prometheus), f"no service that {prometheus} scrapes answers")
    if addresses:
        return lambda: _snapshot(addresses, f"no metrics at {', '.join(addresses)}")
    listen = load_settings(config).telemetry.metrics_listen or DEFAULT_LISTEN
    host, _, set_port = listen.rpartition(":")
    return suite(int(set_port) if port is None else port, host if port is None else "127.0.0.1")


def suite(port: int, host: str = "127.0.0.1") -> Scrape:
    """Of a suite that runs with `--metrics-port`: its services have ports in a row, further executors the next ones."""

    def scrape() -> Snapshot:
        context = _context()
        pages = _pages([f"{host}:{port + place}" for place in range(len(Service))], context)
        for place in count(len(Service)):
            if not (page := _page(address := f"{host}:{port + place}", context)):
                break
            pages[address] = page
        if not pages:
            last = port + len(Service) - 1
            raise Unavailable(f"no metrics at ports {port} to {last}: headrace up --metrics-port {port}")
        return parse(pages)

    return scrape


async def watched(scrape: Scrape, seconds: float) -> Figures:
    """What happens in so many seconds from now. Raises Unavailable."""
    before = await asyncio.to_thread(scrape)
    await asyncio.sleep(seconds)
    return Figures(before, await asyncio.to_thread(scrape), seconds)


def _snapshot(addresses: Sequence[str], none: str) -> Snapshot:
    pages = _pages(addresses, _context())
    if not pages:
        raise Unavailable(none)
    return parse(pages)


def _context() -> ssl.SSLContext | None:
    """None where metrics are not encrypted."""
    own = tls(Role.PROBER)
    return client_context(Certificates(own, server=False).current()) if own else None


def _targets(prometheus: str) -> list[str]:
    """Addresses of the services that a Prometheus knows."""
    try:
        with urllib.request.urlopen(
            f"{prometheus.rstrip('/')}/api/v1/targets?state=active", timeout=TIMEOUT_S
        ) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"no Prometheus answers at {prometheus}: {error}") from error
    return [target["discoveredLabels"]["__address__"] for target in targets if target["labels"]["job"].startswith(JOBS)]


def _pages(addresses: Sequence[str], context: ssl.SSLContext | None) -> dict[str, str]:
    """Of those that answer."""
    with ThreadPoolExecutor(NUM_FETCHING) as threads:
        pages = threads.map(lambda address: _page(address, context), addresses)
        return {address: page for address, page in zip(addresses, pages, strict=True) if page}


def _page(address: str, context: ssl.SSLContext | None) -> str:
    """'' where nobody answers, or something that is no service of ours."""
    url = f"{'https' if context else 'http'}://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as answer:
            page: str = answer.read().decode()
            return page if "headrace_" in page else ""
    except (OSError, ValueError):
        return ""
