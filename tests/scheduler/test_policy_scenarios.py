"""Runs tests/scenarios/*.toml: events in, commands out, compared as lines that read like sentences.

A file has a title, limits, and turns. A turn's events are taken in together at its time; each event is a table whose
first key names it: submit, withdraw, gateway_lost, enlist, report, lost, configure, drain. A turn expects exactly its
lines; renewals are left out where a file says `quiet = true`. `repeat` takes a turn so many times, with {i} counting.
Each is run three times: against the policy alone, in the loop of the scheduler service, and in the simulator's.
"""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepSample
from headrace.scheduler.loop import SchedulerLoop
from headrace.scheduler.policy.commands import Command, Dismiss, Dispatch, Drop, Member, Refuse, Renew, Resume
from headrace.scheduler.policy.events import (
    Configured,
    Drain,
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    GatewayLost,
    Gathered,
    LoadedModel,
    Occurrence,
    Padding,
    Request,
    Submitted,
    Withdrawn,
)
from headrace.scheduler.policy.limits import Bounds, Limits, Order, changed
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State
from headrace.simulator.clock import Clock, Phase
from headrace.simulator.turns import Turns

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.toml"))


def to_state(limits: dict[str, Any]) -> State:
    named = {"lease_s": 1000.0, "batch_tokens": 10_000} | limits
    bounds = Bounds(named.pop("max_waiting_requests", 100), named.pop("max_waiting_tokens", 100_000))
    return State(Limits(bounds, order=Order(named.pop("order", "qos")), **named))


def to_event(table: dict[str, Any], serial: int, limits: Limits) -> Occurrence:
    """The event that a table stands for; what it leaves out takes the default here; changes are to `limits`."""
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
            padding = Padding(*rest["padding"]) if "padding" in rest else None
            loaded = tuple(
                LoadedModel(name, Precision[precision.upper()], context, padding) for name, _, precision in models
            )
            capacity = [rest.get("slots", 2), rest.get("blocks", 100), rest.get("block_tokens", 16)]
            running, paused = tuple(rest.get("running", [])), tuple(rest.get("paused", []))
            architecture = rest.get("architecture", "")
            return ExecutorEnlisted(
                executor_id, f"{executor_id}:1", loaded, *capacity, running, paused, architecture=architecture
            )
        case {"report": executor_id, **rest}:
            return ExecutorReported(
                executor_id,
                tuple(rest.get("started", [])),
                tuple(rest.get("finished", [])),
                rest.get("draining", False),
                tuple(rest.get("output_tokens", [])),
                tuple(rest.get("paused", [])),
                tuple(StepSample(*sample) for sample in rest.get("steps", [])),
            )
        case {"configure": dict(changes)}:
            return Configured(changed(limits, {name: str(value) for name, value in changes.items()}))
        case {"lost": executor_id}:
            return ExecutorLost(executor_id)
        case {"drain": True}:
            return Drain()
    raise AssertionError(f"no event: {table}")


def to_line(command: Command) -> str:
    match command:
        case Dispatch(_, executor_id, _, members, reason, padded_tokens):
            names = " ".join(map(to_name, members))
            padded = f" padded to {padded_tokens}" if padded_tokens else ""
            return f"dispatch to {executor_id}: {names} ({reason.name.lower()}){padded}"
        case Refuse(request, refusal):
            field = f" {refusal.field}" if refusal.field else ""
            retry = "" if refusal.retry_after_s is None else f" retry {refusal.retry_after_s:g} s"
            return f"refuse {request.request_id}: {refusal.kind.reason}{field}{retry}"
        case Drop(request):
            return f"drop {request.request_id}"
        case Resume(executor_id, request_ids):
            return f"resume on {executor_id}: {' '.join(request_ids)}"
        case Renew(executor_id, _):
            return f"renew {executor_id}"
        case Dismiss(executor_id, refusal):
            return f"dismiss {executor_id}: {refusal.kind.reason}"


def to_name(member: Member) -> str:
    """`r/int8`, and in brackets who makes room: `-b`, or `-b*` where it loses its KV too."""
    displaced = " ".join(f"-{each.request_id}{'*' if each.drop_kv else ''}" for each in member.displaced)
    return f"{member.request.request_id}/{member.precision.name.lower()}" + (f"[{displaced}]" if displaced else "")


def counted(value: Any, i: int) -> Any:
    """The value with {i}, and {j} for the next, replaced in all of its strings."""
    match value:
        case str():
            return value.replace("{i}", str(i)).replace("{j}", str(i + 1))
        case list():
            return [counted(each, i) for each in value]
        case dict():
            return {key: counted(each, i) for key, each in value.items()}
    return value


Turn = Callable[[tuple[Occurrence, ...], float], list[Command]]
"""Takes events in at a time; gives the commands since the turn before."""


def policy(state: State) -> Turn:
    return lambda events, at: list(step(state, Gathered(events), at))


def service(state: State) -> Turn:
    """The loop of the scheduler service, on a clock of the test's."""
    commands: list[Command] = []
    times = [0.0]
    loop = SchedulerLoop(state, commands.append, clock=lambda: times[0])

    def turn(events: tuple[Occurrence, ...], at: float) -> list[Command]:
        times[0] = max(times[0], at)  # monotonic
        for event in events:
            loop.post(event)
        due = state.next_due()
        if events or (due is not None and due <= at):
            loop.take_turn()
        taken = list(commands)
        commands.clear()
        return taken

    return turn


def simulator(state: State) -> Turn:
    """The simulator's loop in virtual time, with the ticks that fall due between the turns."""
    commands: list[Command] = []
    clock = Clock()
    turns = Turns(clock, state, commands.append)

    def turn(events: tuple[Occurrence, ...], at: float) -> list[Command]:
        for event in events:
            clock.at(at, partial(turns.receive, event))
        over: list[bool] = []
        clock.at(at, lambda: over.append(True), Phase.BOUNDARY)
        while not over:
            clock.advance()
        taken = list(commands)
        commands.clear()
        return taken

    return turn


@pytest.mark.parametrize("host", [policy, service, simulator])
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, host: Callable[[State], Turn]) -> None:
    scenario = tomllib.loads(path.read_text(encoding="utf-8"))
    state = to_state(scenario.get("limits", {}))
    take = host(state)
    turns = [counted(turn, i) for turn in scenario["turn"] for i in range(turn.get("repeat", 1))]
    for number, turn in enumerate(turns):
        tables = enumerate(turn.get("events", []))
        events = tuple(to_event(table, number * 1000 + i, state.limits) for i, table in tables)
        commands = take(events, turn["at"])
        quiet = scenario.get("quiet", False)
        lines = [to_line(command) for command in commands if not (quiet and isinstance(command, Renew))]
        assert lines == turn["expect"], f"turn {number} at {turn['at']}"


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 30
