"""buckets: padding waste of a padded engine on recorded prompt lengths: packed rows, our length buckets, two published
rules.

No engine runs: batches are formed from the lengths in order of arrival, and what would be computed is counted.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from headrace.benchmarks.bucket_replay import Padding, replay, replay_packed
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.length_traces import length_traces
from headrace.core.packing import rounded_up
from headrace.scheduler.policy.buckets import (
    AdaptiveBuckets,
    FixedBuckets,
    LengthBuckets,
    PowerOfTwoBuckets,
    doubling_edges,
)
from headrace.scheduler.policy.fill import Forming, powers_of_two

BATCH = 16
ALIGN = 64
CONTEXT_TOKENS = 8_192
WINDOW = 2_048
"""Arrivals that a request waits for at most: 10 s at the 200 requests/s of a mid-sized fleet.

The least power of two in which the trace of the shortest prompts, 112 tokens each, brings as many tokens as there are
in one rectangle of BATCH rows for its longest. With less no rule can fill that rectangle: the other windows show it.
"""
OTHER_WINDOWS = (256, 1_024, 4_096)
PACKED = "packed rows"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule came to on a trace. `num_edges`: shapes at the end, None for rules without."""

    padding: Padding
    num_edges: int | None


RowShapes = tuple[int, ...]
FULL: RowShapes = (BATCH,)
RULES: Mapping[str, Callable[[int], tuple[LengthBuckets, Forming]]] = {
    "adaptive": lambda window: _adaptive(window, FULL),
    "adaptive, rows 2^k": lambda window: _adaptive(window, powers_of_two(BATCH)),
    "adaptive, any rows": lambda window: _adaptive(window, ()),
    "fixed 32": lambda window: (FixedBuckets(ALIGN), Forming(BATCH, window)),
    "power of two": lambda window: (PowerOfTwoBuckets(ALIGN), Forming(BATCH, window)),
}
"""Ours fitted for each kind of engine: always BATCH rows, rows in powers of two, as many rows as members."""
SYSTEMS = (PACKED, *RULES)


async def run(lab: Lab) -> Report:
    """Every trace through every rule, ours with other windows too."""
    return await asyncio.to_thread(_measured, lab)


def _measured(lab: Lab) -> Report:
    traces = {name: cut(lengths) for name, lengths in length_traces(lab.workloads, lab.seed).items()}
    outcomes: dict[str, dict[str, Outcome]] = {}
    windows: dict[int, dict[str, float]] = {window: {} for window in OTHER_WINDOWS}
    for name, lengths in traces.items():
        lab.say(f"{name}: {len(lengths)} requests")
        outcomes[name] = {rule: outcome(lengths, rule, WINDOW) for rule in SYSTEMS}
        for window in OTHER_WINDOWS:
            windows[window][name] = outcome(lengths, PACKED, window).padding.waste_full
    return report(lab, traces, outcomes, windows)


def cut(lengths: Sequence[int]) -> list[int]:
    """To the context, as a server would truncate or refuse; empty prompts are left out."""
    return [min(length, CONTEXT_TOKENS) for length in lengths if length > 0]


def outcome(lengths: Sequence[int], rule: str, window: int) -> Outcome:
    """Online: the rule starts knowing nothing."""
    if rule == PACKED:
        row_lengths = doubling_edges(ALIGN, CONTEXT_TOKENS)
        return Outcome(replay_packed(lengths, row_lengths, Forming(BATCH, window), ALIGN), len(row_lengths))
    buckets, forming = RULES[rule](window)
    padding = replay(lengths, buckets, forming)
    return Outcome(padding, len(buckets.edges) if isinstance(buckets, AdaptiveBuckets) else None)


def align_waste(lengths: Sequence[int]) -> float:
    """The least waste possible: each length alone, rounded up to ALIGN, in batches that are always full."""
    return 1.0 - sum(lengths) / sum(rounded_up(length, ALIGN) for length in lengths)


def report(
    lab: Lab,
    traces: Mapping[str, Sequence[int]],
    outcomes: Mapping[str, Mapping[str, Outcome]],
    windows: Mapping[int, Mapping[str, float]],
) -> Report:
    """The worst trace gives each figure. All but `any_rows` count the empty rows of incomplete batches."""
    bounds = {name: align_waste(lengths) for name, lengths in traces.items()}

    def worst(rule: str) -> float:
        return max(by_rule[rule].padding.waste_full for by_rule in outcomes.values())

    figures = [
        Figure("buckets.waste", worst(PACKED)),
        Figure("buckets.waste_unpacked", worst("adaptive")),
        Figure("buckets.waste_fixed32", worst("fixed 32")),
        Figure("buckets.waste_power_of_two", worst("power of two")),
        Figure(
            "buckets.waste_any_rows", max(by["adaptive, any rows"].padding.waste_members for by in outcomes.values())
        ),
        Figure(
            "buckets.waste_above_align",
            max(by["adaptive"].padding.waste_full - bounds[name] for name, by in outcomes.items()),
        ),
    ]
    rows = [_row(f"{name}: {rule}", found, bounds[name]) for name, by in outcomes.items() for rule, found in by.items()]
    settings = {"batch": BATCH, "align": ALIGN, "context_tokens": CONTEXT_TOKENS, "window_arrivals": WINDOW}
    traffic = "recorded" if lab.workloads else "made up from published percentiles"
    return Report(
        "buckets",
        figures,
        rows,
        settings=lab.settings() | settings | {"traffic": traffic},
        raw={
            "align_waste": bounds,
            "outcomes": {name: {rule: _record(found) for rule, found in by.items()} for name, by in outcomes.items()},
            "packed_waste_by_window": windows,
        },
        notes=[
            f"lengths {traffic}, cut to a context of {CONTEXT_TOKENS}; batches of {BATCH}, padded lengths in multiples "
            f"of {ALIGN}; a request waits for at most {WINDOW} further arrivals",
            f"{PACKED}: several requests share a row, which engines can that keep them apart by an attention mask",
            f"waste = 1 - real / computed tokens, with {BATCH} rows in every batch; 2^k: rows up to the next power of "
            "two; lengths: only rows that hold a request; align alone: the bound, every batch full and of one length, "
            "for the trace itself (batches that later load completes count whole, and may move a waste by 0.1 points)",
            *(
                f"{PACKED} with a window of {window}: "
                + ", ".join(f"{name} {waste:.1%}" for name, waste in by_trace.items())
                for window, by_trace in windows.items()
            ),
            *(
                f"{name}: {bound:.1%} is lost to multiples of {ALIGN} alone, so no length buckets reach the goal"
                for name, bound in bounds.items()
                if bound > (figures[0].goal.goal or 0.0)
            ),
        ],
    )


def _adaptive(window: int, row_shapes: RowShapes) -> tuple[LengthBuckets, Forming]:
    forming = Forming(BATCH, window, row_shapes)
    return AdaptiveBuckets(ALIGN, CONTEXT_TOKENS, forming), forming


def _row(system: str, found: Outcome, bound: float) -> Row:
    padding = found.padding
    return Row(
        system,
        {
            "waste": f"{padding.waste_full:.1%}",
            "2^k": f"{padding.waste_rows:.1%}",
            "lengths": f"{padding.waste_members:.1%}",
            "align alone": f"{bound:.1%}",
            "mean batch": f"{padding.num_members / padding.num_batches:.1f}",
            "incomplete": f"{padding.num_incomplete / padding.num_batches:.0%}",
            "wait max": str(max(padding.waits)),
            "mean": f"{fmean(padding.waits):.0f}",
            "edges": "–" if found.num_edges is None else str(found.num_edges),
        },
    )


def _record(found: Outcome) -> dict[str, object]:
    """For the JSON: all counts; of the waits, the longest and the mean."""
    counts = {name: value for name, value in asdict(found.padding).items() if name != "waits"}
    waits = found.padding.waits
    return {**counts, "longest_wait": max(waits), "mean_wait": fmean(waits), "num_edges": found.num_edges}
