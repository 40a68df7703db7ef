"""Executors follow the load: a scaler on this machine reads the rendered ScaledObject and asks a real Prometheus its
queries, and does with executor processes what KEDA and the HPA would do with pods.

The load doubles twice and halves twice. Only the chart's times are shorter here, and slots fewer.
"""

import asyncio
import json
import math
import os
import sys
import time
import urllib.parse
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from headrace.chassis.config import Settings, load_settings
from headrace.client import Answer, AsyncClient
from headrace.models import reference
from headrace.standalone.services import Service
from headrace.standalone.wiring import start

ROOT = Path(__file__).resolve().parents[2]
SLOTS, PHASE_S, LOADS = 4, 7, (3, 6, 12, 6, 3)
BOUND_S = 60
TOLERANCE = 0.1  # of the HPA: so near to its threshold nothing changes
FIRST_TOKEN_MS = 5_000
VALUES = {
    "pools": {
        "cpu": {
            "autoscaling": {
                "enabled": True,
                "min": 0,
                "max": 6,
                "slots": SLOTS,
                "utilisation": 0.7,
                "queuedTokens": 2_000,
                "queueAge": 1,
                "slaBurn": 6,
            }
        }
    },
    "autoscaling": {
        "pollingInterval": 1,
        "cooldownPeriod": 3,
        "growPeriodSeconds": 2,
        "stabilizationSeconds": 4,
        "shrinkPeriodSeconds": 1,
    },
}


@dataclass
class Scaling:
    """What a ScaledObject asks for, decided as KEDA (between none and one) and the HPA (beyond) decide it."""

    spec: dict[str, Any]
    wanted: list[tuple[float, int]] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)
    active_at: float = 0.0

    def decide(self, now: float, count: int, figures: Sequence[float]) -> int:
        """How many executors there should be, of the triggers' values in their order."""
        triggers = self.spec["triggers"]
        least, most = self.spec["minReplicaCount"], self.spec["maxReplicaCount"]
        if any(
            value > float(each["metadata"]["activationThreshold"])
            for each, value in zip(triggers, figures, strict=True)
        ):
            self.active_at = now
        if count == 0:
            return max(1, least) if self.active_at == now else 0
        if least == 0 and now - self.active_at >= self.spec["cooldownPeriod"]:
            return 0
        asked = max(_executors(each, value, count) for each, value in zip(triggers, figures, strict=True))
        return self._bounded(now, count, min(max(asked, least, 1), most))

    def _bounded(self, now: float, count: int, asked: int) -> int:
        """Within what the behaviour allows: the most of the window when shrinking, and so many within a period."""
        behaviour = self.spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        window_s = behaviour["scaleDown"]["stabilizationWindowSeconds"]
        self.wanted = [(at, number) for at, number in self.wanted if now - at < window_s] + [(now, asked)]
        if asked < count:
            asked = min(count, max(number for _, number in self.wanted))
        if asked > count:
            room = [self._growth(now, count, each) for each in behaviour["scaleUp"]["policies"]]
            return min(asked, max(room))
        room = [
            self._before(now, count, each["periodSeconds"]) - each["value"]
            for each in behaviour["scaleDown"]["policies"]
        ]
        return max(asked, min(count, max(room)))

    def _growth(self, now: float, count: int, policy: Mapping[str, Any]) -> int:
        before = self._before(now, count, policy["periodSeconds"])
        more = policy["value"] if policy["type"] == "Pods" else math.ceil(before * policy["value"] / 100)
        return int(before + more)

    def _before(self, now: float, count: int, period_s: float) -> int:
        """How many there were when the period began."""
        return count - sum(change for at, change in self.changes if now - at < period_s)


def _executors(trigger: Mapping[str, Any], value: float, count: int) -> int:
    """The HPA's formula for one external metric."""
    threshold = float(trigger["metadata"]["threshold"])
    ratio = value / threshold if trigger["metricType"] == "Value" else value / (threshold * count)
    return count if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * count - 1e-9)


def scaled_object() -> dict[str, Any]:
    """The pool's, as the chart makes it."""
    with Chart.load(ROOT / "deploy" / "helm" / "headrace") as chart:
        files = chart.render(VALUES, name="headrace", namespace="serving")
    documents = (each for text in files.values() if "ScaledObject" in text for each in yaml.safe_load_all(text))
    spec: dict[str, Any] = next(each for each in documents if each and each["kind"] == "ScaledObject")["spec"]
    return spec


@dataclass
class Pool:
    """Executor processes, the newest last, and the scaler over them."""

    settings: Settings
    prometheus: str
    scaling: Scaling
    running: list[Process] = field(default_factory=list)
    left: list[Process] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    async def scale(self) -> None:
        """Looks, decides and acts each polling interval, until cancelled."""
        while True:
            await asyncio.sleep(self.scaling.spec["pollingInterval"])
            queries = [trigger["metadata"]["query"] for trigger in self.scaling.spec["triggers"]]
            figures = [await asyncio.to_thread(_ask, self.prometheus, query) for query in queries]
            count, now = len(self.running), time.monotonic()
            wanted = self.scaling.decide(now, count, figures)
            if wanted != count:
                self.scaling.changes.append((now, wanted - count))
                self.counts.append(wanted)
            await asyncio.gather(*(self._begin() for _ in range(wanted - count)))
            for process in self.running[wanted:]:
                process.terminate()  # it drains
                self.left.append(process)
            del self.running[wanted:]

    async def _begin(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.standalone.process", Service.EXECUTOR), stdin=PIPE, stdout=PIPE
        )
        self.running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self.settings.model_dump_json().encode() + b"\n")
        assert "address" in json.loads(await process.stdout.readline())

    async def until(self, count: int) -> None:
        async with asyncio.timeout(BOUND_S):
            while len(self.running) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def _ask(prometheus: str, query: str) -> float:
    """A query's one value; 0 where there is none, as ignoreNullValues has it."""
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=5) as response:
        result = json.load(response)["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    reference.install(tmp_path)
    anywhere = {"listen": "127.0.0.1:0"}
    return load_settings(
        overrides={
            "models": {"home": tmp_path},
            "gateway": anywhere,
            "scheduler": {**anywhere, "grace_ms": 86_400_000},  # nobody is refused because there is no executor yet
            "executor": {
                **anywhere,
                "engine": "reference",
                "models": [reference.NAME],
                "reference_step_ms": 40,
                "threads": 1,
                "num_slots": SLOTS,
                "kv_bytes": 2**24,
            },
        }
    )


def metered(settings: Settings, port: int) -> Settings:
    telemetry = settings.telemetry.model_copy(update={"metrics_listen": f"127.0.0.1:{port}"})
    return settings.model_copy(update={"telemetry": telemetry})


def knowing(settings: Settings, address: str) -> Settings:
    """With the scheduler's address."""
    update = {
        name: getattr(settings, name).model_copy(update={"scheduler": address}) for name in ("gateway", "executor")
    }
    return settings.model_copy(update=update)


async def load(client: AsyncClient, callers: int, seconds: float) -> list[Answer]:
    """So many callers, each with one request at a time, until the time is over; all answers there were."""

    async def call() -> list[Answer]:
        answers = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers.append(await generate(client, "realtime"))
        return answers

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call()) for _ in range(callers)]
    return [answer for task in tasks for answer in task.result()]


async def generate(client: AsyncClient, qos: Any) -> Answer:
    promise: Any = {"sla_first_token_ms": FIRST_TOKEN_MS, "on_miss": "continue"} if qos == "realtime" else {}
    return await client.generate(reference.NAME, "wheel", max_tokens=20, qos=qos, **promise)


@pytest.mark.skipif("HEADRACE_ELASTIC" not in os.environ, reason="takes a minute of its own: make elastic")
@pytest.mark.timeout(240)
async def test_executors_follow_the_load(settings: Settings, free_ports: Any, prometheus: Any) -> None:
    scheduler_port, gateway_port = free_ports(2)
    async with (
        start(Service.SCHEDULER, metered(settings, scheduler_port)) as scheduler,
        start(Service.GATEWAY, metered(knowing(settings, scheduler.address), gateway_port)) as gateway,
        prometheus({"headrace-scheduler": scheduler_port, "headrace-gateway": gateway_port}) as address,
        AsyncClient(gateway.address) as client,
    ):
        pool = Pool(knowing(settings, scheduler.address), address, Scaling(scaled_object()))
        scaler = asyncio.create_task(pool.scale())
        try:
            first = await asyncio.wait_for(generate(client, "batch"), BOUND_S)  # it waits for an executor to be there
            reached = []
            answers: list[Answer] = []
            for callers in LOADS:
                answers += await load(client, callers, PHASE_S)
                reached.append(len(pool.running))
            await pool.until(0)
        finally:
            scaler.cancel()
            for process in pool.running:
                process.kill()
        promised = await asyncio.to_thread(_ask, address, "sum(headrace_sla_promised_total)")
        missed = await asyncio.to_thread(_ask, address, "sum(headrace_sla_missed_total)")
        assert [await asyncio.wait_for(process.wait(), BOUND_S) for process in pool.left] == [0] * len(pool.left)

    assert {answer.text for answer in answers} == {first.text}, "nothing is lost or changed while executors leave"
    assert all(answer.usage.completion_tokens == first.usage.completion_tokens for answer in answers)
    assert promised >= len(answers) * 0.9  # the last scrape may miss some
    assert missed <= 0.01 * promised
    assert reached[0] < reached[1] < reached[2]
    assert reached[2] > reached[4]
    turns = [after > before for before, after in pairwise([0, *pool.counts])]
    assert sum(a != b for a, b in pairwise(turns)) == 1, f"up once, down once: {pool.counts}"


def test_formulas_on_paper() -> None:
    scaling = Scaling(scaled_object())
    quiet = [0.0, 0.0, 0.0, 0.0]
    assert scaling.decide(100.0, 0, quiet) == 0
    assert scaling.decide(101.0, 0, [1.0, 20.0, 0.0, 0.0]) == 1
    assert scaling.decide(102.0, 1, [8.0, 0.0, 0.0, 0.0]) == 3  # 8 / (4 x 0.7) = 2.9; by two at most
    assert scaling.decide(103.0, 3, [8.5, 0.0, 0.0, 0.0]) == 3  # within a tenth of the threshold
    assert scaling.decide(104.0, 3, [0.0, 0.0, 1.9, 0.0]) == 6  # the oldest waits too long: 3 x 1.9
    assert scaling.decide(105.0, 6, [2.0, 0.0, 0.0, 0.0]) == 6  # as many were wanted a moment ago
    assert scaling.decide(110.0, 6, [2.0, 0.0, 0.0, 0.0]) == 5  # one at a time
    assert scaling.decide(120.0, 5, quiet) == 0
