"""Recorded traffic by name, from the folder of HEADRACE_WORKLOADS or from shared/workloads beside the repository."""

import csv
import gzip
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from headrace.core.errors import ConfigError
from headrace.simulator.workload.published import PUBLISHED
from headrace.simulator.workload.recorded import Recorded
from headrace.simulator.workload.servegen import read_servegen

VARIABLE = "HEADRACE_WORKLOADS"


def workloads_folder() -> Path | None:
    """The folder with traces/ in it; None where there is none."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "workloads"
    return folder if (folder / "traces").is_dir() else None


def load_trace(
    name: str, rng: np.random.Generator, *, duration_s: float | None, rate_scale: float, folder: Path | None
) -> Recorded:
    """The trace's requests of the first `duration_s` (None: all), at `rate_scale` times their rate.

    Without a folder, requests made up from the published figures. Raises ConfigError for a name that is not known or a
    file that cannot be read.
    """
    if name not in PUBLISHED:
        raise ConfigError(f"no trace {name!r}; there are: {', '.join(PUBLISHED)}")
    if folder is None:
        return PUBLISHED[name].make(name, rng, duration_s or min(PUBLISHED[name].duration_s, 3600.0), rate_scale)
    if name.startswith("servegen_"):
        return read_servegen(folder / "traces", name, rng, duration_s=duration_s or 3600.0, rate_scale=rate_scale)
    path, read = _file_of(folder, name)
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            recorded = read(file, path.name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if recorded.times is None:
        return recorded
    times = recorded.times / rate_scale
    count = len(times) if duration_s is None else int(np.searchsorted(times, duration_s))
    return Recorded(times[:count], recorded.prompts[:count], recorded.outputs[:count], recorded.origin)


def _file_of(folder: Path, name: str) -> tuple[Path, Callable[[TextIO, str], Recorded]]:
    if name.startswith("mooncake_"):
        return folder / "traces" / f"{name}.jsonl.gz", _read_mooncake
    read = _read_lengths if name.startswith("arxiv_") else _read_azure
    return folder / "traces" / f"{name}.csv.gz", read


def _read_azure(file: TextIO, name: str) -> Recorded:
    rows = list(csv.DictReader(file))
    # a hundred nanoseconds are more than datetime reads
    stamps = [row["TIMESTAMP"].partition(".") for row in rows]
    times = np.array([datetime.fromisoformat(whole).timestamp() + float(f"0.{part or 0}") for whole, _, part in stamps])
    return _sorted(times, [row["ContextTokens"] for row in rows], [row["GeneratedTokens"] for row in rows], name)


def _read_mooncake(file: TextIO, name: str) -> Recorded:
    rows = [json.loads(line) for line in file]
    times = np.array([row["timestamp"] for row in rows], np.float64) / 1000
    if name.startswith("mooncake_conversation"):
        times = _spread(times)
    return _sorted(times, [row["input_length"] for row in rows], [row["output_length"] for row in rows], name)


def _spread(times: Any) -> Any:
    """Those recorded at one instant come evenly until the next: the record has steps of about 3 s."""
    instants, index, counts = np.unique(times, return_inverse=True, return_counts=True)
    widths = np.diff(instants, append=instants[-1] + 3.0)
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return times + widths[index] * (np.arange(len(times)) - begins[index]) / counts[index]


def _read_lengths(file: TextIO, name: str) -> Recorded:
    rows = list(csv.DictReader(file))
    prompts = np.array([int(row["prompt_tokens"]) for row in rows])
    outputs = np.array([int(row["output_tokens"]) for row in rows])
    return Recorded(None, np.maximum(prompts, 1), np.maximum(outputs, 1), name)


def _sorted(times: Any, prompts: list[Any], outputs: list[Any], name: str) -> Recorded:
    order = np.argsort(times, kind="stable")
    ordered, first_s = times[order], float(times[order[0]])
    in_order = [np.maximum(np.array(column, np.int64), 1)[order] for column in (prompts, outputs)]
    return Recorded(ordered - first_s, in_order[0], in_order[1], name)
