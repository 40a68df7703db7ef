"""`headrace simulate SCENARIO`: the real scheduler in virtual time, under one policy or several beside each other."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.core.errors import InvalidRequest
from headrace.simulator.policies import POLICIES
from headrace.simulator.report.plot import figure_class
from headrace.simulator.report.plot import plot as draw
from headrace.simulator.report.table import show
from headrace.simulator.scenario import FOLDER, Scenario, load_scenario, parse_scenario
from headrace.simulator.simulate import simulate as run
from headrace.simulator.workload.published import PUBLISHED

_KNOWN = ", ".join(sorted(path.stem for path in FOLDER.glob("*.toml")))


def simulate(
    scenario: Annotated[str, typer.Argument(help=f"A scenario file, or one of: {_KNOWN}.")] = "",
    trace: Annotated[str, typer.Option(help=f"Recorded traffic in its place: {', '.join(PUBLISHED)}.")] = "",
    policy: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(POLICIES)}, the scenario's.")] = "default",
    rate_scale: Annotated[float | None, typer.Option(help="Of a trace: times its recorded rate.")] = None,
    load: Annotated[float | None, typer.Option(help="Of a trace: its lengths only, Poisson at this load.")] = None,
    executors: Annotated[int | None, typer.Option(help="How many, in place of the scenario's.")] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds in which requests come.")] = None,
    classes: Annotated[str, typer.Option(help="Of a trace, by share: realtime=0.1,normal=0.6,batch=0.3.")] = "",
    tenants: Annotated[str, typer.Option(help="Of a trace, by share: a=0.9,b=0.1.")] = "",
    seed: Annotated[int | None, typer.Option(help="Of everything drawn.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Leave all figures here.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw waits, load and first tokens.")] = None,
) -> None:
    """Run the scheduler against simulated executors and traffic, in virtual time."""
    if bool(scenario) is bool(trace):
        raise InvalidRequest("name a scenario or a --trace, one of the two", field="scenario")
    if scenario:
        of_traces = {"--rate-scale": rate_scale, "--load": load, "--classes": classes, "--tenants": tenants}
        if given := [name for name, value in of_traces.items() if value]:
            raise InvalidRequest(f"{', '.join(given)}: only with --trace", field="trace")
        chosen = load_scenario(scenario)
    else:
        chosen = _of_trace(trace, rate_scale, load, classes, tenants)
    chosen = _changed(chosen, executors=executors, duration=duration, seed=seed)
    names = list(dict.fromkeys(name for name in policy.split(",") if name))
    if not names:
        raise InvalidRequest("--policy names none", field="policy")
    for name in names:
        chosen.policy_named(name)
    if plot:
        figure_class()  # a missing library shows before the work
    for file in (json_file, plot):
        if file and not file.parent.is_dir():
            raise InvalidRequest(f"{file}: there is no folder {file.parent}", field="file")
    progress = Console(stderr=True, highlight=False)
    summaries = []
    for name in names:
        with progress.status(f"{chosen.name}, {name}"):
            summaries.append(run(chosen, name))
    show(summaries, Console())
    if json_file:
        report = {"scenario": chosen.model_dump(mode="json"), "runs": [each.as_json() for each in summaries]}
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if plot:
        draw(summaries, plot)


def _of_trace(trace: str, rate_scale: float | None, load: float | None, classes: str, tenants: str) -> Scenario:
    stream: dict[str, Any] = {"name": trace, "trace": trace}
    if rate_scale is not None:
        stream["rate_scale"] = rate_scale
    if load is not None:
        stream["arrivals"] = {"kind": "poisson", "load": load}
    if classes:
        stream["classes"] = _shares("--classes", classes)
    if tenants:
        stream["tenants"] = _shares("--tenants", tenants)
    return parse_scenario({"name": trace, "streams": [stream]}, "--trace")


def _shares(option: str, text: str) -> dict[str, str]:
    """NAME=SHARE, comma-separated; the scenario's model checks the rest."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise InvalidRequest(f"{option}: {text!r} is not NAME=SHARE,...", field=option)
    return {name: share for name, _, share in pairs}


def _changed(scenario: Scenario, *, executors: int | None, duration: float | None, seed: int | None) -> Scenario:
    data = scenario.model_dump()
    if executors is not None:
        if len(scenario.fleet) > 1:
            raise InvalidRequest("--executors: the scenario has executors of several kinds", field="executors")
        data["fleet"] = [{**data["fleet"][0], "count": executors}]
    if duration is not None:
        data["duration_s"] = duration
    if seed is not None:
        data["seed"] = seed
    return parse_scenario(data, scenario.name)
