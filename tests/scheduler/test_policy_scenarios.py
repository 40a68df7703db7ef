"""Runs tests/scenarios/*.toml: events in, commands out, compared as lines that read like sentences.

A file has a title, limits, and turns. A turn's events are taken in together at its time; each event is a table whose
first key names it: submit, withdraw, gateway_lost, enlist, report, lost, drain. A turn expects exactly its lines.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.commands import Command, Dismiss, Dispatch, Drop, Refuse, Renew
from headrace.scheduler.policy.events import (
    Drain,
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    GatewayLost,
    Gathered,
    LoadedModel,
    Occurrence,
    Request,
    Submitted,
    Withdrawn,
)
from headrace.scheduler.policy.limits import Bounds, Limits
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.toml"))


def to_state(limits: dict[str, Any]) -> State:
    bounds = Bounds(limits.get("max_waiting_requests", 100), limits.get("max_waiting_tokens", 100_000))
    return State(Limits(bounds, limits.get("lease_s", 1000.0), limits.get("batch_tokens", 10_000)))


def to_event(table: dict[str, Any], serial: int) -> Occurrence:
    """The event that a table stands for; what it leaves out takes the default here."""
    match table:
        case {"submit": request_id, **rest}:
            named = {"qos_class": QosClass[rest.pop("class", "normal").upper()]}
            named["precision"] = Precision[rest.pop("precision", "any").upper()]
            numbers = {"prompt_tokens": 20, "max_output_tokens": 10, "model": "m"} | rest
            return Submitted(Request(serial, request_id, numbers.pop("gateway", "g1"), **numbers, **named))
        case {"withdraw": request_id, **rest}:
            return Withdrawn(rest.get("gateway", "g1"), request_id)
        case {"gateway_lost": gateway_id}:
            return GatewayLost(gateway_id)
        case {"enlist": executor_id, **rest}:
            models = [name.partition("/") for name in rest.get("models", ["m/int8"])]
            context = rest.get("context_tokens", 1000)
            loaded = tuple(LoadedModel(name, Precision[precision.upper()], context) for name, _, precision in models)
            capacity = [rest.get("slots", 2), rest.get("blocks", 100), rest.get("block_tokens", 16)]
            return ExecutorEnlisted(executor_id, f"{executor_id}:1", loaded, *capacity, tuple(rest.get("running", [])))
        case {"report": executor_id, **rest}:
            started, finished = tuple(rest.get("started", [])), tuple(rest.get("finished", []))
            return ExecutorReported(executor_id, started, finished, rest.get("draining", False))
        case {"lost": executor_id}:
            return ExecutorLost(executor_id)
        case {"drain": True}:
            return Drain()
    raise AssertionError(f"no event: {table}")


def to_line(command: Command) -> str:
    match command:
        case Dispatch(_, executor_id, _, members, reason):
            names = " ".join(f"{member.request.request_id}/{member.precision.name.lower()}" for member in members)
            return f"dispatch to {executor_id}: {names} ({reason.name.lower()})"
        case Refuse(request, refusal):
            field = f" {refusal.field}" if refusal.field else ""
            retry = "" if refusal.retry_after_s is None else f" retry {refusal.retry_after_s:g} s"
            return f"refuse {request.request_id}: {refusal.kind.reason}{field}{retry}"
        case Drop(request):
            return f"drop {request.request_id}"
        case Renew(executor_id, _):
            return f"renew {executor_id}"
        case Dismiss(executor_id, refusal):
            return f"dismiss {executor_id}: {refusal.kind.reason}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    scenario = tomllib.loads(path.read_text(encoding="utf-8"))
    state = to_state(scenario.get("limits", {}))
    for number, turn in enumerate(scenario["turn"]):
        events = tuple(to_event(table, number * 1000 + i) for i, table in enumerate(turn.get("events", [])))
        lines = [to_line(command) for command in step(state, Gathered(events), turn["at"])]
        assert lines == turn["expect"], f"turn {number} at {turn['at']}"


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 10
