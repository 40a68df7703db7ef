"""tracing: what tracing every request costs at saturation, the collector on the same machine included.

Two suites, one with tracing as `headrace up` has it, one with it switched off by the standard variable, are measured in
turns while the other idles; who goes first changes from round to round, so that a machine that warms up or slows down
is no gain of either. A round's cost is within its pair.
"""

from headrace.benchmarks.closed_loop import Window
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, Lab
from headrace.benchmarks.measure import median, saturate_suite, window_json
from headrace.benchmarks.suite import started

ON, OFF = "traced", "not traced"
SETTINGS = {ON: {"OTEL_SDK_DISABLED": "false"}, OFF: {"OTEL_SDK_DISABLED": "true"}}


async def run(lab: Lab) -> Report:
    """Raises Unavailable where a suite does not start."""
    windows: dict[str, list[Window]] = {ON: [], OFF: []}
    prompts = lab.prompts()
    async with (
        started(lab.model, lab.log("suite-traced"), SETTINGS[ON]) as traced,
        started(lab.model, lab.log("suite-untraced"), SETTINGS[OFF]) as untraced,
    ):
        suites = {ON: traced, OFF: untraced}
        for number in range(lab.rounds):
            for name in sorted(suites, reverse=number % 2 == 0):
                lab.say(f"round {number + 1} of {lab.rounds}: {name}")
                windows[name].append(await saturate_suite(suites[name], prompts, lab, lab.window_s))
    return report(lab, windows)


def report(lab: Lab, windows: dict[str, list[Window]]) -> Report:
    """The cost is the median over the rounds of the share of tokens a second that is missing when traced."""
    costs = [
        1 - on.tokens_per_s / off.tokens_per_s
        for on, off in zip(windows[ON], windows[OFF], strict=True)
        if off.tokens_per_s
    ]
    rates = {name: median([window.tokens_per_s for window in taken]) for name, taken in windows.items()}
    rows = [Row(name, {"tokens/s": f"{rate:,.0f}" if rate else "–"}) for name, rate in rates.items()]
    rows.append(Row("cost of a round", {"tokens/s": ", ".join(f"{cost:+.1%}" for cost in costs)}))
    return Report(
        "tracing",
        [Figure("tracing.cost", median(costs))],
        rows,
        settings=lab.settings() | {"streams": NUM_STREAMS},
        raw={"windows": {name: [window_json(each) for each in taken] for name, taken in windows.items()}},
    )
