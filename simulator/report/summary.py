"""The figures of a run: per class, per tenant, and of the fleet. Plain values that go into JSON as they are."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.core.request import QosClass
from headrace.simulator.histogram import Histogram
from headrace.simulator.job import Job, Outcome
from headrace.simulator.report.fairness import fairness
from headrace.simulator.world import Run

Promises = Mapping[str, tuple[float | None, float | None]]
"""By class: most seconds to the first token, most to the end."""

_CURVE_POINTS = 200


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some seconds; None of nothing."""

    mean: float | None
    p50: float | None
    p99: float | None
    longest: float | None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The requests of a class or of a tenant. Seconds.

    `wait` is until an executor took the request; `longest_wait_s` is also of those that ended untaken.
    `sla_met` is the share of all that came, refused ones too, that had what their class is promised.
    """

    count: int
    outcomes: dict[str, int]
    wait: Spread
    longest_wait_s: float | None
    ttft: Spread
    total: Spread
    inter_token: Spread
    sla_met: float | None
    output_tokens: int
    displacements: int


@dataclass(frozen=True, slots=True)
class PaddedSummary:
    """Padded batches. `waste` is the share of computed tokens that are padding, `utilisation` the share of rows taken,
    `total` of all requests from arrival to end; `reasons` count why batches closed."""

    batches: int
    rows_per_batch: float
    waste: float
    utilisation: float
    total: Spread
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of the run. `utilisation` is of slots; `waits` are the mean waits by class of those that came in it."""

    begins_s: float
    arrivals_rps: float
    output_tokens_per_s: float
    utilisation: float
    waits: dict[str, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """`fill` is the share of computed tokens that were neither padding nor computed again. `fairness` is Jain's index
    over tenants of service while requests came, relative to max-min fair shares. `ttft_curves` are quantiles by class,
    evenly spaced from 0 to 1."""

    policy: str
    notes: list[str]
    requests: int
    outcomes: dict[str, int]
    reasons: dict[str, int]
    duration_s: float
    ended_at_s: float
    output_tokens_per_s: float
    fill: float | None
    padded: PaddedSummary | None
    utilisation: float
    displaced: int
    dropped_kv: int
    resumed: int
    fairness: float | None
    num_steps: int
    num_turns: int
    by_class: dict[str, GroupSummary]
    by_tenant: dict[str, GroupSummary]
    intervals: list[Interval]
    ttft_curves: dict[str, list[float]]

    def as_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def summarise(policy: str, run: Run, promises: Promises, notes: list[str]) -> Summary:
    """The figures of a run under the policy of this name."""
    classes = sorted({job.qos_class for job in run.jobs})
    tenants = sorted({job.request.tenant for job in run.jobs})
    jobs_of_class: dict[QosClass, list[Job]] = defaultdict(list)
    jobs_of_tenant: dict[str, list[Job]] = defaultdict(list)
    for job in run.jobs:
        jobs_of_class[job.qos_class].append(job)
        jobs_of_tenant[job.request.tenant].append(job)
    gaps = run.telemetry.gaps
    telemetry = run.telemetry
    lasted_s = max(run.ended_at, 1e-9)
    asked = {
        tenant: float(sum(job.request.prompt_tokens + job.output_tokens for job in jobs))
        for tenant, jobs in jobs_of_tenant.items()
    }
    slot_seconds = sum(cell.slot_seconds for cell in telemetry.cells.values())
    return Summary(
        policy=policy,
        notes=notes,
        requests=len(run.jobs),
        outcomes=_outcomes(run.jobs),
        reasons=dict(sorted(Counter(job.reason for job in run.jobs if job.reason).items())),
        duration_s=run.duration_s,
        ended_at_s=run.ended_at,
        output_tokens_per_s=sum(cell.output_tokens for cell in telemetry.cells.values()) / lasted_s,
        fill=telemetry.useful_tokens / telemetry.computed_tokens if telemetry.computed_tokens else None,
        padded=_padded(run),
        utilisation=slot_seconds / (run.num_slots * lasted_s),
        displaced=telemetry.num_displaced,
        dropped_kv=telemetry.num_dropped,
        resumed=telemetry.num_resumed,
        fairness=fairness(asked, {name: float(tokens) for name, tokens in telemetry.served_tokens.items()}),
        num_steps=telemetry.num_steps,
        num_turns=run.num_turns,
        by_class={
            qos.name.lower(): _group(
                jobs_of_class[qos], promises, _merged(gaps[group] for group in sorted(gaps) if group[0] is qos)
            )
            for qos in classes
        },
        by_tenant={
            tenant: _group(
                jobs_of_tenant[tenant], promises, _merged(gaps[group] for group in sorted(gaps) if group[1] == tenant)
            )
            for tenant in tenants
        },
        intervals=_intervals(run, jobs_of_class),
        ttft_curves={qos.name.lower(): _curve(job.ttft_s for job in jobs_of_class[qos]) for qos in classes},
    )


def _padded(run: Run) -> PaddedSummary | None:
    telemetry = run.telemetry
    batches = sum(telemetry.batches.values())
    if not batches:
        return None
    return PaddedSummary(
        batches=batches,
        rows_per_batch=telemetry.rows / batches,
        waste=1 - telemetry.useful_tokens / telemetry.computed_tokens,
        utilisation=telemetry.rows / telemetry.possible_rows,
        total=_spread(job.total_s for job in run.jobs),
        reasons={reason.name.lower(): count for reason, count in sorted(telemetry.batches.items())},
    )


def _group(jobs: list[Job], promises: Promises, gaps: Histogram) -> GroupSummary:
    promised = [(job, promises[name]) for job in jobs if (name := job.qos_class.name.lower()) in promises]
    return GroupSummary(
        count=len(jobs),
        outcomes=_outcomes(jobs),
        wait=_spread(job.waited_s for job in jobs),
        longest_wait_s=max((job.starved_s for job in jobs if job.starved_s is not None), default=None),
        ttft=_spread(job.ttft_s for job in jobs),
        total=_spread(job.total_s for job in jobs),
        inter_token=Spread(gaps.mean, gaps.quantile(0.5), gaps.quantile(0.99), gaps.longest if gaps.weight else None),
        sla_met=sum(_kept(job, *promise) for job, promise in promised) / len(promised) if promised else None,
        output_tokens=sum(job.generated for job in jobs),
        displacements=sum(job.num_displacements for job in jobs),
    )


def _outcomes(jobs: Iterable[Job]) -> dict[str, int]:
    counted = Counter(job.outcome.value for job in jobs)
    return {outcome.value: counted[outcome.value] for outcome in Outcome}


def _kept(job: Job, ttft_s: float | None, total_s: float | None) -> bool:
    if job.ttft_s is None or job.total_s is None:
        return False
    return (ttft_s is None or job.ttft_s <= ttft_s) and (total_s is None or job.total_s <= total_s)


def _spread(values: Iterable[float | None]) -> Spread:
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return Spread(None, None, None, None)
    p50, p99 = np.quantile(known, (0.5, 0.99)).tolist()
    return Spread(float(known.mean()), p50, p99, float(known.max()))


def _curve(values: Iterable[float | None]) -> list[float]:
    known = [value for value in values if value is not None]
    return [float(each) for each in np.quantile(known, np.linspace(0, 1, _CURVE_POINTS + 1))] if known else []


def _merged(parts: Iterable[Histogram]) -> Histogram:
    merged = Histogram()
    for part in parts:
        merged.merge(part)
    return merged


def _intervals(run: Run, jobs_of_class: Mapping[QosClass, list[Job]]) -> list[Interval]:
    width = run.telemetry.interval_s
    waits: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for qos, jobs in jobs_of_class.items():
        for job in jobs:
            if job.waited_s is not None:
                waits[int(job.arrived_at / width)][qos.name.lower()].append(job.waited_s)
    return [
        Interval(
            begins_s=number * width,
            arrivals_rps=cell.arrivals / width,
            output_tokens_per_s=cell.output_tokens / width,
            utilisation=cell.slot_seconds / (width * run.num_slots),
            waits={name: sum(values) / len(values) for name, values in sorted(waits[number].items())},
        )
        for number, cell in sorted(run.telemetry.cells.items())
    ]
