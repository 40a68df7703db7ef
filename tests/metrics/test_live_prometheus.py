"""Debian's Prometheus scrapes a suite: its alerts fire under a real overload and resolve after it.

The rules are the deployed ones at sixty times their speed: their windows and waits of minutes are as many seconds, and
Prometheus looks five times a second. Expressions and bounds are as they are.
"""

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli.figures import Figures
from headrace.cli.scraping import scraping
from headrace.core.errors import Overloaded
from headrace.models import reference

DEPLOYED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
FASTER = 60
LOOK = "200ms"
BOUND_S = 120
UNDER_OVERLOAD = {"HighInferenceLoad", "QueueOld", "QueueNearlyFull", "CallsRefused"}
SECONDS = {"m": 60, "h": 3600}


class Prometheus:
    """A running one, asked through its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def ask(self, path: str) -> Any:
        """The data of an answer; None where nobody answers."""
        return await asyncio.to_thread(self._ask, path)

    def _ask(self, path: str) -> Any:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]
        return None

    async def until(self, path: str, seen: Callable[[Any], bool]) -> Any:
        """The first data that fit. Fails where none do."""
        data = None
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    data = await self.ask(path)
                    if data is not None and seen(data):
                        return data
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"{path} gives only {data}")


def faster(rules: str) -> str:
    """Windows and waits shortened; the names of records, which name their windows too, stay."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) * SECONDS[found[3]] // FASTER}s"

    return re.sub(r"(\[|for: )(\d+)([mh])", shorter, rules)


@asynccontextmanager
async def prometheus(program: str, folder: Path, first_port: int) -> AsyncIterator[Prometheus]:
    """Scrapes the suite whose metrics begin at `first_port`, by the deployed settings and rules."""
    config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": LOOK, "scrape_timeout": LOOK, "evaluation_interval": LOOK}
    del config["alerting"]
    for place, job in enumerate(config["scrape_configs"]):
        job["static_configs"] = [{"targets": [f"127.0.0.1:{first_port + place}"]}]
    for name in config["rule_files"]:
        (folder / name).write_text(faster((DEPLOYED / name).read_text()))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = first_port + 10
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        await process.wait()


def firing(data: Any) -> set[str]:
    return {alert["labels"]["alertname"] for alert in data["alerts"] if alert["state"] == "firing"}


async def test_alerts_fire_under_overload_and_resolve_after(
    watching: Any, program: Callable[[str], str], tmp_path: Path, metrics_port: int
) -> None:
    numbers = count()

    async def overload() -> None:
        while True:
            with suppress(Overloaded):
                await watched.client.generate(
                    reference.NAME, f"{next(numbers)}", qos="realtime", max_tokens=100, ignore_eos=True
                )

    async with (
        watching(executor={"reference_step_ms": 10, "num_slots": 2}, scheduler={"max_waiting_requests": 10}) as watched,
        prometheus(program("prometheus"), tmp_path, metrics_port) as prom,
    ):
        await prom.until(
            "targets?state=active", lambda data: {"up"} <= {each["health"] for each in data["activeTargets"]}
        )
        assert firing(await prom.ask("alerts")) <= {"ServiceDown"}  # until all have been scraped once
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(overload()) for _ in range(24)]
            await prom.until("alerts", lambda data: firing(data) >= UNDER_OVERLOAD)
            groups = (await prom.ask("rules"))["groups"]
            rules = [rule for each in groups for rule in each["rules"]]
            figures = await asyncio.to_thread(scraping(None, None, prom.url, None))
            for call in calls:
                call.cancel()
        await prom.until("alerts", lambda data: not firing(data) & UNDER_OVERLOAD)
    wanted = [rule for name in ("recording.yml", "alerts.yml") for rule in _stated(name)]
    assert sorted(rule["name"] for rule in rules) == sorted(wanted)
    assert {rule["health"] for rule in rules} == {"ok"}
    # what Prometheus scrapes is where `headrace doctor --prometheus` looks
    assert Figures(figures, figures, 1).level("slots") == 2


def _stated(file: str) -> list[str]:
    groups = yaml.safe_load((DEPLOYED / file).read_text())["groups"]
    return [rule.get("record") or rule["alert"] for group in groups for rule in group["rules"]]
