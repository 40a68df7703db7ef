"""Every scenario, one after the other: one that cannot run is named with its reason and does not stop the rest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.benchmarks.figures import Report, json_text, write_whole
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.machine import versions
from headrace.benchmarks.scenarios.registry import Scenario
from headrace.benchmarks.table import goal_text, value_text
from headrace.core.errors import HeadraceError


@dataclass(slots=True)
class Everything:
    """The reports of one run on one machine, and why a scenario has none."""

    machine: dict[str, Any]
    reports: list[Report] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def write_json(self, path: Path) -> None:
        """All reports, and the scenarios without one by name."""
        content = {
            "machine": self.machine,
            "reports": [report.as_json() for report in self.reports],
            "failed": self.failed,
        }
        write_whole(path, json_text(content))

    def markdown(self) -> str:
        """Figures with their goals, the table of each scenario without figures, and what could not run."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"{self.machine.get('processor', '')}, {self.machine.get('cores', '')} cores"
        yield from ("", "| figure | value | goal | met |", "| --- | --: | --: | --- |")
        for report in self.reports:
            for figure in report.figures:
                met = {None: "", True: "yes", False: "no"}[figure.met]
                yield _line((f"`{figure.name}`", value_text(figure), goal_text(figure), met))
        for report in self.reports:
            if not report.figures and report.rows:
                columns = list(dict.fromkeys(name for row in report.rows for name in row.values))
                yield from ("", f"{report.scenario}:", "", _line(("", *columns, "note")))
                yield _line(("---", *("--:" for _ in columns), "---"))
                for row in report.rows:
                    yield _line((row.system, *(row.values.get(name, "–") for name in columns), row.note))
        if self.failed:
            yield from ("", "Could not run:", "")
            yield from (f"- {name}: {_cell(reason)}" for name, reason in self.failed.items())


async def run_all(scenarios: Mapping[str, Scenario], lab: Lab, machine: dict[str, Any]) -> Everything:
    """Runs all of them, whatever becomes of each."""
    everything = Everything(machine)
    for number, (name, scenario) in enumerate(scenarios.items(), 1):
        lab.say(f"{name} ({number} of {len(scenarios)})")
        try:
            report = await scenario.run(lab)
        except Exception as error:  # of whatever kind: the others are still to be measured
            everything.failed[name] = reason(error)
            lab.say(f"{name}: {everything.failed[name]}")
            continue
        report.machine = machine
        report.versions["headrace"] = versions()
        everything.reports.append(report)
    return everything


def reason(error: BaseException) -> str:
    """What went wrong first, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
