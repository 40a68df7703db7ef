"""What `headrace top` shows, and what its keys do. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.figures import Figures

CLASSES = ("realtime", "normal", "batch")
KV_CELLS = 24
KEYS = "q leave   s sort devices   r requests, 1-9 one of them   esc back"


class Sort(StrEnum):
    """What devices are ordered by: by address, else the most first."""

    ADDRESS = "address"
    BUSY = "busy"
    SLOTS = "slots"
    KV = "KV"


class Page(StrEnum):
    """The suite, its newest requests, or one of those."""

    SUITE = "suite"
    REQUESTS = "requests"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Looking:
    """What is looked at: `chosen` counts among the requests listed, from 0. `left` once `q` has been pressed."""

    page: Page = Page.SUITE
    sort: Sort = Sort.ADDRESS
    chosen: int = 0
    left: bool = False


def press(looking: Looking, key: str) -> Looking:
    """After a key; one that means nothing changes nothing."""
    match key:
        case "q":
            return replace(looking, left=True)
        case "s":
            sorts = list(Sort)
            return replace(looking, sort=sorts[(sorts.index(looking.sort) + 1) % len(sorts)])
        case "r":
            return replace(looking, page=Page.REQUESTS)
        case "\x1b":
            back = Page.REQUESTS if looking.page is Page.REQUEST else Page.SUITE
            return replace(looking, page=back)
        case _ if key in "123456789" and looking.page is not Page.SUITE:
            return replace(looking, page=Page.REQUEST, chosen=int(key) - 1)
    return looking


def view(f: Figures, sort: Sort = Sort.ADDRESS) -> Group:
    """Queues by class, promises and screens, batches by why they closed, devices with their memory."""
    return Group(_classes(f), "", _promises(f), _batches(f), "", _devices(f, sort), "", Text(KEYS, style="dim"))


def _classes(f: Figures) -> Table:
    table = Table("class", "waiting", "oldest s", "wait ms", "first token ms", "inter-token ms", "tokens/s", box=None)
    for name in CLASSES:
        labels = {"class": name}
        table.add_row(
            name,
            f"{f.level('queue_requests', **labels):,.0f}",
            f"{f.level('queue_age_seconds', **labels):,.1f}",
            *(f"{f.mean(each, **labels) * 1000:,.0f}" for each in ("queue_wait_seconds", "ttft_seconds")),
            f"{f.mean('inter_token_seconds', **labels) * 1000:,.1f}",
            f"{f.rate('output_tokens_total', **labels):,.0f}",
        )
    return table


def _promises(f: Figures) -> Text:
    """On one line, since mostly there is nothing to say."""
    promised, missed = f.grown("sla_promised_total"), f.grown("sla_missed_total")
    verdicts = {name: f.grown("screen_verdicts_total", verdict=name) for name in ("pass", "found", "none")}
    parts = [
        f"promises {promised:.0f}, broken {missed:.0f}",
        f"deadlines missed {f.grown('deadline_missed_total'):.0f}",
        f"refused {f.grown('refusals_total'):.0f}",
        "screen " + ", ".join(f"{name} {number:.0f}" for name, number in verdicts.items()),
    ]
    return Text("   ".join(parts), style="yellow" if missed or verdicts["none"] else "")


def _batches(f: Figures) -> Text:
    """A second, by why they were closed."""
    reasons = {reason: f.rate("batches_total", reason=reason) for reason in f.values("batches_total", "reason")}
    closed = ", ".join(f"{reason} {rate:.1f}" for reason, rate in sorted(reasons.items()) if rate)
    return Text(f"batches/s {sum(reasons.values()):,.1f}  of {f.mean('batch_size'):.1f}  closed: {closed or '-'}")


def _devices(f: Figures, sort: Sort) -> Table:
    devices = f.services("slots")
    keys = {
        Sort.BUSY: lambda each: -each.rate("step_seconds_sum"),
        Sort.SLOTS: lambda each: -each.level("slots_in_use"),
        Sort.KV: lambda each: -each.level("kv_bytes", state="held"),
    }
    names = sorted(devices, key=lambda name: keys[sort](devices[name])) if sort in keys else sorted(devices)
    headings = ("device", "slots", "step ms", "rows", "busy", "tokens/s", "KV: held, cached, mapped", "MiB")
    table = Table(*(f"{each} ↓" if each.partition(":")[0] == sort else each for each in headings), box=None)
    for name in names:
        device = devices[name]
        held, cached, mapped, total = (
            device.level("kv_bytes", state=state) for state in ("held", "cached", "mapped", "total")
        )
        table.add_row(
            name,
            f"{device.level('slots_in_use'):.0f} of {device.level('slots'):.0f}",
            f"{device.mean('step_seconds') * 1000:,.1f}",
            f"{device.mean('step_rows'):,.1f}",
            f"{device.rate('step_seconds_sum'):.0%}",
            f"{device.rate('step_tokens_total') - device.rate('step_tokens_total', kind='padding'):,.0f}",
            _kv_map(held, cached, mapped, total),
            f"{held / 2**20:,.0f}" if total else "",
        )
    return table


def _kv_map(held: float, cached: float, mapped: float, total: float) -> RenderableType:
    """All KV memory as a row of cells: what sequences hold, what the prefix cache has, what is mapped and empty."""
    if not total:
        return Text("-", style="dim")
    bounds = [round(min(1.0, upto / total) * KV_CELLS) for upto in (held, held + cached, max(mapped, held + cached))]
    return Text.assemble(
        ("█" * bounds[0], "green"),
        ("▓" * (bounds[1] - bounds[0]), "cyan"),
        ("▒" * (bounds[2] - bounds[1]), "dim"),
        ("·" * (KV_CELLS - bounds[2]), "dim"),
    )


def numbered(lines: Sequence[RenderableType]) -> Group:
    """A list of which keys choose."""
    table = Table.grid(padding=(0, 1))
    for number, line in enumerate(lines, 1):
        table.add_row(Text(str(number), style="bold"), line)
    return Group(table, "", Text(KEYS, style="dim"))
