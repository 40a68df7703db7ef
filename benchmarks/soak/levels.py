"""What a suite's services hold, scraped from their metrics: places, blocks, permits, leases, memory, descriptors."""

import asyncio
import random
import socket
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from headrace.chassis.metric_table import device, gateway, scheduler
from headrace.standalone.services import Service

TIMEOUT_S = 5.0
PORTS = range(20_000, 30_000)
"""Below those that the system gives away itself: a service that comes back must find its own free."""

HELD = {
    Service.SCHEDULER: (
        (scheduler.QUEUE_REQUESTS, {}),
        (scheduler.POOL_SLOTS_RESERVED, {}),
        (scheduler.POOL_BLOCKS_RESERVED, {}),
        (scheduler.EXECUTORS, {"state": "ready"}),
        (scheduler.EXECUTORS, {"state": "draining"}),
    ),
    Service.EXECUTOR: (
        (device.SLOTS_IN_USE, {}),
        (device.RUNNING, {}),
        (device.PAUSED, {}),
        (device.KV_BYTES, {"state": "held"}),
        (device.KV_BYTES, {"state": "reserved"}),
    ),
    Service.GATEWAY: (
        (gateway.PERMITS_IN_USE, {"unit": "requests"}),
        (gateway.PERMITS_IN_USE, {"unit": "tokens"}),
        (gateway.PERMITS_IN_USE, {"unit": "bytes"}),
        (gateway.GATEWAY_WAITING, {}),
        (gateway.GATEWAY_RUNNING, {}),
        (gateway.UNREAD_FRAMES, {}),
    ),
}
"""What must be as it was before the load once all calls have ended."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Of one service. `started_s` tells a process from the one before it; `own_bytes` is its resident memory without
    mapped KV pages, whose use follows the load."""

    started_s: float
    own_bytes: float
    num_files: float
    held: Mapping[str, float]


def free_port() -> int:
    """The first of as many free ports in a row as there are services."""
    while True:
        first = random.choice(PORTS)
        with ExitStack() as bound, suppress(OSError):
            for place in range(len(Service)):
                bound.enter_context(socket.socket()).bind(("127.0.0.1", first + place))
            return first


def num_enlisted(levels: Mapping[Service, Levels]) -> float:
    """Executors that have a lease."""
    scheduler_levels = levels.get(Service.SCHEDULER)
    return scheduler_levels.held[f"{scheduler.EXECUTORS.name} ready"] if scheduler_levels else 0.0


async def scraped(first_port: int) -> dict[Service, Levels]:
    """Of the services that answer; the first's metrics are at that port, the others' after it."""
    found = {}
    for service, held in HELD.items():
        with suppress(OSError):
            page = await asyncio.to_thread(_page, first_port + list(Service).index(service))
            samples = {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(page)
                for sample in family.samples
            }
            mapped = samples.get((device.KV_BYTES.name, frozenset({("state", "mapped")})), 0.0)
            found[service] = Levels(
                samples[("process_start_time_seconds", frozenset())],
                samples[("process_resident_memory_bytes", frozenset())] - mapped,
                samples[("process_open_fds", frozenset())],
                {
                    " ".join((metric.name, *labels.values())): samples.get(
                        (metric.name, frozenset(labels.items())), 0.0
                    )
                    for metric, labels in held
                },
            )
    return found


def _page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        page: str = answer.read().decode()
        return page
