"""Figures and their goals: what a scenario is judged by, and the JSON that it leaves."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Goal:
    """The unit of a figure, which way is better, and the value to reach; `goal` None where none was set."""

    unit: str
    better: Better
    goal: float | None


GOALS: Mapping[str, Goal] = {
    "saturate.ratio_best_peer": Goal("x", "higher", 1.3),
    "saturate.ratio_best_engine": Goal("x", "higher", None),
    "saturate.tokens_per_s": Goal("tokens/s", "higher", None),
    "replay.goodput_ratio_best_peer": Goal("x", "higher", 1.5),
    "replay.goodput_per_s": Goal("requests/s", "higher", None),
    "single.ratio_llamacpp": Goal("x", "higher", 1.2),
    "single.ttft_ratio_llamacpp": Goal("x", "lower", 1.0),
    "overhead.ttft_ms": Goal("ms", "lower", 3.0),
    "overhead.scheduling_share": Goal("share", "lower", 0.01),
    "tracing.cost": Goal("share", "lower", 0.02),
    "tracing.cpu_cost": Goal("share", "lower", 0.02),
    "exact.mismatches": Goal("answers", "lower", 0.0),
    "vip.realtime_mean_cut": Goal("share", "higher", 0.8),
    "vip.realtime_p99_cut": Goal("share", "higher", 0.8),
    "vip.normal_throughput_change": Goal("share", "higher", -0.03),
    "static.throughput_ratio": Goal("x", "higher", 5.0),
    "static.p99_ratio": Goal("x", "lower", 0.25),
    "sched.events_per_s": Goal("events/s", "higher", 30_000.0),
    "sched.growth": Goal("x", "lower", 1.5),
    "agree.throughput_gap": Goal("share", "lower", 0.15),
    "agree.wait_gap": Goal("share", "lower", 0.15),
    "agree.ttft_gap": Goal("share", "lower", None),
    "sla.partial_lag_ms_p99": Goal("ms", "lower", 20.0),
    "sla.lost": Goal("answers", "lower", 0.0),
    "screen.block_ms_p99": Goal("ms", "lower", 60.0),
    "screen.added_ttft_ms_p50": Goal("ms", "lower", 2.0),
    "screen.recall": Goal("share", "higher", 0.9),
    "screen.recall_injection": Goal("share", "higher", 0.8),
    "screen.overblock": Goal("share", "lower", 0.02),
    "screen.overblock_xstest": Goal("share", "lower", 0.1),
    "exact.cost": Goal("share", "lower", 0.05),
    "structured.valid": Goal("share", "higher", 1.0),
    "structured.cost": Goal("share", "lower", 0.05),
    "precision.cost_cut": Goal("share", "higher", 0.65),
    "prefix.ttft_ratio": Goal("x", "higher", 5.0),
    "prefix.hit_gap_points": Goal("points", "lower", 2.0),
    "experts.mismatches": Goal("answers", "lower", 0.0),
    "experts.slowdown_half": Goal("x", "lower", None),
    "memory.fragmentation": Goal("share", "lower", 0.01),
    "memory.oom": Goal("answers", "lower", 0.0),
    "memory.return_s": Goal("s", "lower", 5.0),
    "chaos.lost": Goal("answers", "lower", 0.0),
    "chaos.twice": Goal("answers", "lower", 0.0),
    "chaos.client_errors": Goal("answers", "lower", 0.0),
    "buckets.waste": Goal("share", "lower", 0.04),
    "buckets.waste_unpacked": Goal("share", "lower", None),
    "buckets.waste_fixed32": Goal("share", "lower", None),
    "buckets.waste_power_of_two": Goal("share", "lower", None),
    "buckets.waste_any_rows": Goal("share", "lower", None),
    "buckets.waste_above_align": Goal("share", "lower", None),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `value` None: it could not be measured, and then it is not met."""

    name: str
    value: float | None

    @property
    def goal(self) -> Goal:
        return GOALS[self.name]

    @property
    def met(self) -> bool | None:
        """None where there is no goal."""
        if self.goal.goal is None:
            return None
        if self.value is None:
            return False
        return self.value >= self.goal.goal if self.goal.better == "higher" else self.value <= self.goal.goal

    def as_json(self) -> dict[str, Any]:
        goal = self.goal
        return {
            "name": self.name,
            "value": self.value,
            "unit": goal.unit,
            "better": goal.better,
            "goal": goal.goal,
            "met": self.met,
        }


@dataclass(slots=True)
class Row:
    """One line of a scenario's table: a system, what it reached, and what is to be said about it."""

    system: str
    values: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(slots=True)
class Report:
    """What a scenario found. `raw` holds every sample, `settings` all that was chosen, `versions` by system."""

    scenario: str
    figures: list[Figure]
    rows: list[Row]
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "figures": [figure.as_json() for figure in self.figures],
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "notes": [*self.notes, *(f"{row.system}: {row.note}" for row in self.rows if row.note)],
            "raw": self.raw,
        }

    def write(self, path: Path) -> None:
        write_whole(path, json_text(self.as_json()))


def json_text(content: Mapping[str, Any]) -> str:
    """For a file; what JSON does not know is written as text."""
    return json.dumps(content, indent=1, default=str) + "\n"


def write_whole(path: Path, text: str) -> None:
    """The file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
