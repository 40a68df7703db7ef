"""Prompt lengths in order of arrival: of recorded traces, drawn from recorded quantiles, or made up from figures."""

import csv
import gzip
import json
import math
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.core.errors import InvalidRequest
from headrace.simulator.workload import published

Quantiles = Sequence[tuple[float, float]]
"""Points (share of requests, tokens), ascending in both, from share 0 to 1; tokens are at least 1.

Between two points a length's logarithm is uniform: ServeGen's means come out within 5 % so, and too long when the
length itself is.
"""

DRAWN = 20_000
"""Requests drawn where a source has figures but no single requests."""

_TRACES = {
    "azure conv": ("azure_llm_2023_conv", 19_366),
    "azure code": ("azure_llm_2023_code", 8_819),
    "mooncake conversation": ("mooncake_conversation", 12_031),
    "mooncake synthetic": ("mooncake_synthetic", 3_993),
    "arxiv": ("arxiv_summarization_lengths", 28_257),
    "servegen m-large": ("servegen_m-large", DRAWN),
    "servegen m-mid": ("servegen_m-mid", DRAWN),
    "servegen m-small": ("servegen_m-small", DRAWN),
    "servegen deepseek-r1": ("servegen_deepseek-r1", DRAWN),
}

PUBLISHED: Mapping[str, tuple[int, float, float, float]] = {
    name: (count, prompt.p50, prompt.p90, prompt.p99)
    for name, (trace, count) in _TRACES.items()
    for prompt in (published.PUBLISHED[trace].prompt,)
}
"""Requests, and the 50th, 90th and 99th percentile of their prompt tokens, as the traces' statistics give them."""

_WINDOW_S = 21_600  # of ServeGen's length histograms
_PERCENTILES = {"p1": 0.01, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99, "max": 1.0}


def length_traces(workloads: Path | None, seed: int) -> dict[str, list[int]]:
    """Lengths in tokens, uncut, by trace. Raises InvalidRequest where the folder lacks one of the traces."""
    random_ = random.Random(seed)
    if workloads is None:
        return {name: _made_up(figures, random_) for name, figures in PUBLISHED.items()}
    folder = workloads / "traces"
    try:
        return {
            "azure conv": _csv_lengths(folder / "azure_llm_2023_conv.csv.gz", "ContextTokens"),
            "azure code": _csv_lengths(folder / "azure_llm_2023_code.csv.gz", "ContextTokens"),
            "mooncake conversation": _json_lengths(folder / "mooncake_conversation.jsonl.gz"),
            "mooncake synthetic": _json_lengths(folder / "mooncake_synthetic.jsonl.gz"),
            "arxiv": _csv_lengths(folder / "arxiv_summarization_lengths.csv.gz", "prompt_tokens"),
            **servegen_lengths(folder, random_),
        }
    except FileNotFoundError as missing:
        raise InvalidRequest(f"no trace {missing.filename}", field="workloads") from missing


def servegen_lengths(folder: Path, random_: random.Random) -> dict[str, list[int]]:
    """DRAWN lengths a model, window after window in time: clients by their rates, lengths by the client's quantiles."""
    rates: dict[tuple[str, int, str], float] = defaultdict(float)
    for row in _rows(folder / "servegen_clients_busiest_day.csv.gz"):
        window = int(float(row["t_s"])) // _WINDOW_S * _WINDOW_S
        rates[row["model"], window, row["client"]] += float(row["rate_rps"])
    sources: dict[str, list[tuple[int, float, Quantiles]]] = defaultdict(list)
    for row in _rows(folder / "servegen_lengths_busiest_day.csv.gz"):
        window = int(float(row["t_s"])) // _WINDOW_S * _WINDOW_S
        if row["metric"] == "input_tokens" and (rate := rates[row["model"], window, row["client"]]) > 0:
            points = [(share, max(1.0, float(row[name]))) for name, share in _PERCENTILES.items()]
            sources[row["model"]].append((window, rate, [(0.0, points[0][1]), *points]))
    traces = {}
    for model, clients in sources.items():
        drawn = random_.choices(clients, weights=[rate for _, rate, _ in clients], k=DRAWN)
        drawn.sort(key=lambda source: source[0])  # a stable sort: by window, in random order inside
        traces[f"servegen {model}"] = [draw(quantiles, random_) for _, _, quantiles in drawn]
    return traces


def draw(quantiles: Quantiles, random_: random.Random) -> int:
    """One length, at least 1."""
    share = random_.random()
    index = bisect_right(quantiles, share, key=lambda point: point[0])
    (low, shorter), (high, longer) = quantiles[index - 1], quantiles[index]
    return round(shorter * math.pow(longer / shorter, (share - low) / (high - low)))


def _made_up(figures: tuple[int, float, float, float], random_: random.Random) -> list[int]:
    count, p50, p90, p99 = figures
    quantiles = [(0.0, max(1.0, p50 / 8)), (0.5, p50), (0.9, p90), (0.99, p99), (1.0, 1.5 * p99)]
    return [draw(quantiles, random_) for _ in range(count)]


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def _csv_lengths(file: Path, column: str) -> list[int]:
    return [int(row[column]) for row in _rows(file)]


def _json_lengths(file: Path) -> list[int]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [int(json.loads(line)["input_length"]) for line in lines]
