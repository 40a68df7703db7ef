"""Summaries as tables for a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from headrace.simulator.job import Outcome
from headrace.simulator.report.summary import GroupSummary, Spread, Summary

MOST_TENANTS = 20
"""Rows of tenants; those with most requests."""

_WAITS = ("count", "wait\nmean", "\np50", "\np99", "\nmost", "TTFT\nmean", "\np50", "\np99")
_ENDS = ("total\nmean", "\np99", "inter-\nmean", "token\np99", "SLA\nmet", "\nmoved", "\nnot served")


def show(summaries: Sequence[Summary], console: Console) -> None:
    """What the runs had in common, then the policies class by class, tenant by tenant, and the fleet."""
    for note in summaries[0].notes:
        console.print(note, style="dim", markup=False, highlight=False)
    _show_groups("class", summaries, list(summaries[0].by_class), console)
    tenants = sorted(summaries[0].by_tenant.items(), key=lambda item: -item[1].count)
    if len(tenants) > 1:
        _show_groups("tenant", summaries, [name for name, _ in tenants[:MOST_TENANTS]], console)
        if len(tenants) > MOST_TENANTS:
            console.print(f"and {len(tenants) - MOST_TENANTS} more tenants, in the JSON", style="dim")
    console.print(_fleet(summaries))
    if any(each.padded for each in summaries):
        console.print()
        console.print(_padded(summaries))


def _show_groups(kind: str, summaries: Sequence[Summary], names: Sequence[str], console: Console) -> None:
    """Two tables, so that each fits 80 columns."""
    for columns, cells in ((_WAITS, _waits), (_ENDS, _ends)):
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(f"\n{kind}")
        table.add_column("\npolicy")
        for column in columns:
            table.add_column(column if "\n" in column else f"\n{column}", justify="right")
        for name in names:
            for place, summary in enumerate(summaries):
                group = (summary.by_tenant if kind == "tenant" else summary.by_class)[name]
                table.add_row((name or "-") if place == 0 else "", summary.policy, *cells(group))
        console.print(table)
        console.print()


def _waits(group: GroupSummary) -> Iterator[str]:
    yield f"{group.count:,}"
    yield from (_seconds(group.wait.mean), _seconds(group.wait.p50), _seconds(group.wait.p99))
    yield _seconds(group.longest_wait_s)
    yield from (_seconds(group.ttft.mean), _seconds(group.ttft.p50), _seconds(group.ttft.p99))


def _ends(group: GroupSummary) -> Iterator[str]:
    yield from _two(group.total)
    yield from _two(group.inter_token)
    yield "-" if group.sla_met is None else f"{group.sla_met:.1%}"
    yield f"{group.displacements:,}"
    unserved = {name: number for name, number in group.outcomes.items() if number and name != Outcome.FINISHED}
    yield ", ".join(f"{number:,} {name}" for name, number in unserved.items()) or "-"


def _two(spread: Spread) -> Iterator[str]:
    yield _seconds(spread.mean)
    yield _seconds(spread.p99)


def _fleet(summaries: Sequence[Summary]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("\npolicy")
    for column in (
        "tokens\nout/s",
        "slots\nused",
        "\nfill",
        "\nmoved",
        "KV\ndropped",
        "\nfairness",
        "\nended",
        "\nsteps",
    ):
        table.add_column(column, justify="right")
    for each in summaries:
        table.add_row(
            each.policy,
            f"{each.output_tokens_per_s:,.1f}",
            f"{each.utilisation:.1%}",
            "-" if each.fill is None else f"{each.fill:.1%}",
            f"{each.displaced:,}",
            f"{each.dropped_kv:,}",
            "-" if each.fairness is None or len(each.by_tenant) < 2 else f"{each.fairness:.3f}",
            _seconds(each.ended_at_s),
            f"{each.num_steps:,}",
        )
    return table


def _padded(summaries: Sequence[Summary]) -> Table:
    """Batches of padded engines, a line a policy."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("\npolicy")
    for column in ("\nbatches", "rows/\nbatch", "rows\nused", "\nfill", "\nwaste", "total\nmean", "\np99"):
        table.add_column(column, justify="right")
    table.add_column("\nclosed by")
    for each in summaries:
        if padded := each.padded:
            table.add_row(
                each.policy,
                f"{padded.batches:,}",
                f"{padded.rows_per_batch:.1f}",
                f"{padded.utilisation:.1%}",
                f"{1 - padded.waste:.1%}",
                f"{padded.waste:.1%}",
                *_two(padded.total),
                ", ".join(f"{name} {count:,}" for name, count in padded.reasons.items()),
            )
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.3g}ms" if value < 0.1 else f"{value * 1000:.0f}ms"
    return f"{value:.3g}s" if value < 100 else f"{value:,.0f}s"
