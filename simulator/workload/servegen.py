"""Requests after ServeGen: each client by its own rate and burstiness in windows of 600 s, with its own lengths.

The method is that of alibaba/ServeGen: traffic is a sum of clients. A client whose lengths are not in the files has
those of the whole model.
"""

import csv
import gzip
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.simulator.workload.lengths import Tokens, whole
from headrace.simulator.workload.processes import gamma_times
from headrace.simulator.workload.published import PUBLISHED
from headrace.simulator.workload.recorded import Recorded

WINDOW_S = 600.0
_LENGTHS_WINDOW_S = 21_600.0
_SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_COLUMNS = ("p1", "p10", "p25", "p50", "p75", "p90", "p99", "max")


def read_servegen(
    folder: Path, name: str, rng: np.random.Generator, *, duration_s: float, rate_scale: float
) -> Recorded:
    """The first `duration_s` of the model's busiest day; tenants are its clients. Raises ConfigError."""
    model = name.removeprefix("servegen_")
    try:
        windows = _windows(folder / "servegen_clients_busiest_day.csv.gz", model)
        quantiles = _quantiles(folder / "servegen_lengths_busiest_day.csv.gz", model)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder}: {error}") from error
    first_s = min(begins for _, begins, _, _ in windows)
    parts: list[tuple[NDArray[np.float64], Tokens, Tokens, str]] = []
    for client, begins, rate_rps, cv in windows:
        low = begins - first_s
        if low >= duration_s or rate_rps <= 0:
            continue
        high = min(low + WINDOW_S, duration_s)
        times = np.fromiter(gamma_times(rng, rate_rps * rate_scale, max(cv, 0.05), low, high), np.float64)
        lengths = quantiles.get((client, begins - begins % _LENGTHS_WINDOW_S), {})
        prompts = _draw(lengths.get("input_tokens"), rng, len(times))
        outputs = _draw(lengths.get("output_tokens"), rng, len(times))
        if prompts is None or outputs is None:
            prompts = PUBLISHED[name].prompt.draw(rng, len(times))
            outputs = PUBLISHED[name].output.draw(rng, len(times))
        parts.append((times, prompts, outputs, client))
    times, prompts, outputs = (np.concatenate([part[i] for part in parts]) for i in range(3))
    order = np.argsort(times, kind="stable")
    names = [client for part in parts for client in [f"client-{part[3]}"] * len(part[0])]
    tenants = tuple(names[i] for i in order.tolist())
    return Recorded(times[order], prompts[order], outputs[order], f"{name}, client by client", tenants)


def _windows(path: Path, model: str) -> list[tuple[str, float, float, float]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return [
            (row["client"], float(row["t_s"]), float(row["rate_rps"]), float(row["cv"] or 1))
            for row in csv.DictReader(file)
            if row["model"] == model
        ]


def _quantiles(path: Path, model: str) -> dict[tuple[str, float], dict[str, list[float]]]:
    found: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(dict)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["model"] == model and row["metric"] in ("input_tokens", "output_tokens"):
                found[row["client"], float(row["t_s"])][row["metric"]] = [float(row[column]) for column in _COLUMNS]
    return found


def _draw(quantiles: list[float] | None, rng: np.random.Generator, size: int) -> Tokens | None:
    """Log-linear between the quantiles."""
    if quantiles is None:
        return None
    logs = np.log(np.maximum(quantiles, 1.0))
    return whole(np.exp(np.interp(rng.random(size), _SHARES, logs)))
