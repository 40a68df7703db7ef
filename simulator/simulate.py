"""One scenario under one policy: the workload made, the world run, the summary drawn from it."""

from pathlib import Path

from headrace.simulator.policies import limits_of
from headrace.simulator.report.summary import Summary, summarise
from headrace.simulator.scenario import Scenario
from headrace.simulator.workload.stream import Workload
from headrace.simulator.workload.traces import workloads_folder
from headrace.simulator.world import Fault, Run, Setup, World


def simulate(scenario: Scenario, policy: str, *, folder: Path | None = None) -> Summary:
    """The summary of `run`, with what the scenario promises. `folder` holds recorded traffic; None: the usual one."""
    result, notes = run(scenario, policy, folder=folder)
    promises = {name: (promise.ttft_s, promise.total_s) for name, promise in scenario.sla.items()}
    return summarise(policy, result, promises, notes)


def run(scenario: Scenario, policy: str, *, folder: Path | None = None) -> tuple[Run, list[str]]:
    """Equal scenarios give equal runs, and policies the same requests at the same times.

    Also returns what a reader should know of the workload. Raises ConfigError, InvalidRequest.
    """
    chosen = scenario.policy_named(policy)
    limits = limits_of(scenario.policy, chosen.settings)
    workload = Workload(
        scenario.streams,
        scenario.devices,
        duration_s=scenario.duration_s,
        seed=scenario.seed,
        folder=folder or workloads_folder(),
    )
    setup = Setup(
        limits=limits,
        devices=scenario.devices,
        duration_s=workload.duration_s,
        model=scenario.model,
        hop_s=scenario.hop_s,
        one_class=chosen.one_class,
        static=chosen.static,
        faults=tuple(Fault(each.kind, each.executor, each.at_s, each.silent) for each in scenario.faults),
    )
    result = World(setup, workload).run()
    notes = list(workload.origins)
    if workload.num_cut:
        notes.append(f"{workload.num_cut} of {len(result.jobs)} requests were cut to the context")
    return result, notes
