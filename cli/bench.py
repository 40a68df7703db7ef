"""`headrace bench SCENARIO`: measures beside peers, prints the figures with their goals, and leaves them as JSON."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.benchmarks import machine
from headrace.benchmarks.all import run_all
from headrace.benchmarks.figures import write_whole
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.peers.catalogue import PEERS
from headrace.benchmarks.scenarios.registry import SCENARIOS, Scenario
from headrace.benchmarks.table import show
from headrace.chassis.config import load_settings
from headrace.core.errors import InvalidRequest
from headrace.models.repository import Repository

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Measure the suite beside its peers in one run.")

ALL_PEERS = ",".join(PEERS)

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Leave figures and raw samples here.")]
Model = Annotated[str, typer.Option(help="An installed model; peers use the GGUF it came from.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds, in each of which every system is measured.")]
Requests = Annotated[int, typer.Option(min=1, help="Requests a round in single, overhead and exact.")]
WindowS = Annotated[float, typer.Option(min=1, help="Measured seconds a round in saturate and overhead.")]
WarmS = Annotated[float, typer.Option(min=0, help="Seconds of load before them.")]
Chosen = Annotated[str, typer.Option("--peers", help="Comma-separated; one left out is reported as such.")]
Workloads = Annotated[
    Path | None,
    typer.Option(envvar="HEADRACE_WORKLOADS", help="Take prompts/*.jsonl.gz from this folder, not made-up text."),
]
Seed = Annotated[int, typer.Option(help="Of prompts and of everything drawn.")]


@app.callback(invoke_without_command=True)
def _root(
    list_: Annotated[bool, typer.Option("--list", help="List the scenarios and their figures.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Run every scenario, with short windows.")] = False,
    json_file: JsonFile = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="With --all: a table of all figures.")] = None,
    model: Model = "smollm2",
    rounds: Rounds = 2,
    requests: Requests = 32,
    window_s: WindowS = 10.0,
    warm_s: WarmS = 5.0,
    peers: Chosen = ALL_PEERS,
    workloads: Workloads = None,
    seed: Seed = 1,
) -> None:
    if list_:
        Console().print(_listing())
    if all_:
        lab = _lab(model, rounds, requests, window_s, warm_s, peers, workloads, seed)
        everything = asyncio.run(run_all(SCENARIOS, lab, machine.machine()))
        for report in everything.reports:
            show(report, Console())
        for name, reason in everything.failed.items():
            Console().print(f"{name} could not run: {reason}", markup=False)
        if json_file:
            everything.write_json(json_file)
        if markdown:
            write_whole(markdown, everything.markdown())


def _lab(
    model: str,
    rounds: int,
    requests: int,
    window_s: float,
    warm_s: float,
    peers: str,
    workloads: Path | None,
    seed: int,
) -> Lab:
    chosen = tuple(name for name in peers.split(",") if name)
    if unknown := set(chosen) - set(PEERS):
        known = ", ".join(PEERS)
        raise InvalidRequest(f"no peer {', '.join(sorted(unknown))}; there are: {known}", field="peers")
    home, progress = load_settings().models.home, Console(stderr=True, highlight=False)
    return Lab(
        home=home,
        entry=Repository(home).get(model),
        say=lambda line: progress.print(line, style="dim", markup=False),
        rounds=rounds,
        window_s=window_s,
        warm_s=warm_s,
        num_requests=requests,
        seed=seed,
        peers=chosen,
        workloads=workloads,
    )


def _command(scenario: Scenario) -> Callable[..., None]:
    def bench(
        json_file: JsonFile = None,
        model: Model = "smollm2",
        rounds: Rounds = 3,
        requests: Requests = 64,
        window_s: WindowS = 20.0,
        warm_s: WarmS = 8.0,
        peers: Chosen = ALL_PEERS,
        workloads: Workloads = None,
        seed: Seed = 1,
    ) -> None:
        lab = _lab(model, rounds, requests, window_s, warm_s, peers, workloads, seed)
        facts = machine.machine()  # before the load, which it reports
        report = asyncio.run(scenario.run(lab))
        report.machine = facts
        report.versions["headrace"] = machine.versions()
        show(report, Console())
        if json_file:
            report.write(json_file)

    return bench


for _name, _scenario in SCENARIOS.items():
    app.command(_name, help=_scenario.what)(_command(_scenario))


def _listing() -> Table:
    table = Table()
    for name in ("scenario", "what", "figures"):
        table.add_column(name, overflow="fold")
    for name, scenario in SCENARIOS.items():
        table.add_row(name, scenario.what, "\n".join(scenario.figures))
    return table
