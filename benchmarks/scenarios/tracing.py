"""tracing: what tracing every request costs at saturation, the collector on the same machine included.

Two suites, one with tracing as `headrace up` has it, one with it switched off by the standard variable, are measured in
turns while the other idles; who goes first changes from round to round, so that a machine that warms up or slows down
is no gain of either. A round's cost is within its pair, twice: of tokens a second, which whatever else the machine
does moves too, and of CPU time. Spans are made, sent and kept by threads beside the engine's, so the latter takes what
those threads use more for a token, as a share of all that a token takes: the engine's own time scatters by far more
than tracing costs. Both come with the error of their median, by the scatter of the rounds.
"""

import asyncio
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.benchmarks.closed_loop import Window
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, Lab
from headrace.benchmarks.measure import median, saturate_suite, window_json
from headrace.benchmarks.process_time import threads_cpu_s
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.suite import Suite, started

ON, OFF = "traced", "not traced"
SETTINGS = {ON: {"OTEL_SDK_DISABLED": "false"}, OFF: {"OTEL_SDK_DISABLED": "true"}}
ENGINE = "engine"
ENGINE_SHARE = 0.2
"""A thread of the executor that computes for more of the window is the engine's."""
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The standard error of a median over that of a mean, of values that scatter normally."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One window, and the CPU seconds within it: of the engine's threads, and of each process beside them."""

    window: Window
    cpu_s: Mapping[str, float]

    @property
    def ms_per_token(self) -> float:
        """CPU time of a token; 0 where it cannot be read, or no token came."""
        return self._ms(sum(self.cpu_s.values()))

    @property
    def beside_ms_per_token(self) -> float:
        """Of it, what is not the engine's."""
        return self._ms(sum(self.cpu_s.values()) - self.cpu_s.get(ENGINE, 0.0))

    def _ms(self, used_s: float) -> float:
        return 1000 * used_s / self.window.num_tokens if self.window.num_tokens else 0.0


async def run(lab: Lab) -> Report:
    """Raises Unavailable where a suite does not start."""
    taken: dict[str, list[Measured]] = {ON: [], OFF: []}
    prompts = lab.prompts()
    async with (
        started(lab.model, lab.log("suite-traced"), SETTINGS[ON]) as traced,
        started(lab.model, lab.log("suite-untraced"), SETTINGS[OFF]) as untraced,
    ):
        suites = {ON: traced, OFF: untraced}
        for number in range(lab.rounds):
            for name in sorted(suites, reverse=number % 2 == 0):
                lab.say(f"round {number + 1} of {lab.rounds}: {name}")
                taken[name].append(await _measured(suites[name], prompts, lab))
    return report(lab, taken)


async def _measured(suite: Suite, prompts: Prompts, lab: Lab) -> Measured:
    async with asyncio.TaskGroup() as group:
        cpu = group.create_task(_cpu_within_window(suite.pid, lab))
        window = await saturate_suite(suite, prompts, lab, lab.window_s)
    return Measured(window, cpu.result())


async def _cpu_within_window(supervisor: int, lab: Lab) -> dict[str, float]:
    await asyncio.sleep(lab.warm_s)
    before = threads_cpu_s(supervisor)
    await asyncio.sleep(lab.window_s)
    used = {thread: used_s - before.get(thread, 0.0) for thread, used_s in threads_cpu_s(supervisor).items()}
    return by_process(used, lab.window_s)


def by_process(used: Mapping[tuple[str, int], float], window_s: float) -> dict[str, float]:
    """CPU seconds of threads, by service and thread id, as those of the engine and of each process beside it."""
    sums = Counter[str]()
    for (service, _), used_s in used.items():
        computes = service == "executor" and used_s > ENGINE_SHARE * window_s
        sums[ENGINE if computes else service] += used_s  # type: ignore[assignment]  # a Counter of floats
    return dict(sums)


def report(lab: Lab, taken: Mapping[str, Sequence[Measured]]) -> Report:
    """The costs are medians over the rounds: of the share of tokens a second that is missing when traced, and of the
    CPU time that a token takes more beside the engine, as a share of all that it takes."""
    pairs = list(zip(taken[ON], taken[OFF], strict=True))
    whole_ms = median([each.ms_per_token for each in taken[OFF]])
    slower = [1 - on.window.tokens_per_s / off.window.tokens_per_s for on, off in pairs if off.window.tokens_per_s]
    dearer = [(on.beside_ms_per_token - off.beside_ms_per_token) / whole_ms for on, off in pairs if whole_ms]
    rows = [Row(name, _levels(measured), _processes(measured)) for name, measured in taken.items()]
    rows.append(Row("cost", {"tokens/s": _centre(slower), "CPU ms a token": _centre(dearer)}, "median ± its error"))
    rows.append(Row("cost of a round", {"tokens/s": _listed(slower), "CPU ms a token": _listed(dearer)}))
    return Report(
        "tracing",
        [Figure("tracing.cost", median(slower)), Figure("tracing.cpu_cost", median(dearer))],
        rows,
        settings=lab.settings() | {"streams": NUM_STREAMS},
        raw={
            "windows": {
                name: [{**window_json(each.window), "cpu_s": dict(each.cpu_s)} for each in measured]
                for name, measured in taken.items()
            },
            "error": {"tracing.cost": error(slower), "tracing.cpu_cost": error(dearer)},
        },
        notes=[
            "CPU cost: what the threads beside the engine's use more for a token, over all CPU time of a token untraced"
        ],
    )


def error(costs: Sequence[float]) -> float | None:
    """The standard error of the median, by the scatter of the rounds; None for fewer than two."""
    return MEDIAN_ERROR * statistics.stdev(costs) / math.sqrt(len(costs)) if len(costs) > 1 else None


def _levels(measured: Sequence[Measured]) -> dict[str, str]:
    rate = median([each.window.tokens_per_s for each in measured])
    cpu_ms = median([each.ms_per_token for each in measured])
    return {"tokens/s": f"{rate:,.0f}" if rate else "–", "CPU ms a token": f"{cpu_ms:.3f}" if cpu_ms else "–"}


def _processes(measured: Sequence[Measured]) -> str:
    """CPU milliseconds of a token in each, over all windows together."""
    tokens, used = sum(each.window.num_tokens for each in measured), Counter[str]()
    for each in measured:
        used.update(each.cpu_s)
    return ", ".join(f"{name} {1000 * seconds / tokens:.3f}" for name, seconds in sorted(used.items()) if tokens)


def _centre(costs: Sequence[float]) -> str:
    centre, its_error = median(costs), error(costs)
    if centre is None:
        return "–"
    return f"{centre:+.2%}" + ("" if its_error is None else f" ± {its_error:.2%}")


def _listed(costs: Sequence[float]) -> str:
    return ", ".join(f"{cost:+.1%}" for cost in costs)
