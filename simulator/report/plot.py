"""Summaries as a picture: waits by class over time, load, the law of the time to the first token. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import ConfigError
from headrace.simulator.report.summary import Summary


def figure_class() -> Any:
    """Matplotlib's Figure. Raises ConfigError where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'headrace[sim]'") from error
    return Figure


def plot(summaries: Sequence[Summary], path: Path) -> None:
    """Writes the picture; the ending says in which form. Raises ConfigError."""
    figure = figure_class()(figsize=(6 * len(summaries) + 1, 10), layout="constrained")
    rows = figure.subplots(3, len(summaries), squeeze=False, sharey="row")
    for column, summary in enumerate(summaries):
        waits, load, curves = (rows[row][column] for row in range(3))
        waits.set_title(summary.policy)
        for name in summary.by_class:
            points = [(part.begins_s, part.waits[name]) for part in summary.intervals if name in part.waits]
            if points:
                waits.plot(*zip(*points, strict=True), label=name)
            if quantiles := summary.ttft_curves[name]:
                curves.plot(quantiles, np.linspace(0, 1, len(quantiles)), label=name)
        waits.set(xlabel="arrival [s]", ylabel="mean wait [s]")
        waits.set_yscale("symlog", linthresh=0.1)
        begins = [part.begins_s for part in summary.intervals]
        load.plot(begins, [part.utilisation for part in summary.intervals], label="slots used")
        load.set(xlabel="time [s]", ylabel="share of slots", ylim=(0, 1.05))
        curves.set(xlabel="time to first token [s]", ylabel="share of requests", xscale="log")
        for axes in (waits, load, curves):
            axes.legend(loc="best", fontsize="small")
            axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
