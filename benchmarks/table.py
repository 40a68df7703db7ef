"""A report as tables on a terminal."""

from rich.console import Console
from rich.table import Table

from headrace.benchmarks.figures import Figure, Report


def show(report: Report, console: Console) -> None:
    """Prints the systems with what they reached, then the figures with their goals, then the notes."""
    columns = list(dict.fromkeys(name for row in report.rows for name in row.values))
    systems = Table(title=report.scenario, title_justify="left")
    systems.add_column("system")
    for name in columns:
        systems.add_column(name, justify="right")
    systems.add_column("note", overflow="fold")
    for row in report.rows:
        systems.add_row(row.system, *(row.values.get(name, "–") for name in columns), row.note)
    console.print(systems)

    figures = Table()
    for name in ("figure", "value", "goal", "met"):
        figures.add_column(name, justify="left" if name in ("figure", "met") else "right")
    for figure in report.figures:
        figures.add_row(figure.name, value_text(figure), goal_text(figure), met_text(figure))
    if report.figures:
        console.print(figures)
    for note in report.notes:
        console.print(f"[dim]{note}[/]", highlight=False)


def value_text(figure: Figure) -> str:
    """The value with its unit."""
    return "not measured" if figure.value is None else f"{figure.value:,.4g} {figure.goal.unit}"


def goal_text(figure: Figure) -> str:
    """The goal as a bound; '' without one."""
    goal = figure.goal
    return "" if goal.goal is None else f"{'≥' if goal.better == 'higher' else '≤'} {goal.goal:g}"


def met_text(figure: Figure) -> str:
    """yes, no, or '' without a goal."""
    return {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[figure.met]
