"""What must hold at the end of a soak, as lines that say what was found. Pure."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.benchmarks.disturbances import Disturbance
from headrace.benchmarks.soak.calls import Ended, Fate, fate
from headrace.benchmarks.soak.levels import Levels
from headrace.standalone.services import Service

MAX_GROWTH_BYTES = 48 * 2**20
MAX_GROWTH_FILES = 24
"""Of one process from its first quarter after the warm-up to its last: pools fill, allocators keep what was freed."""
WARM_S = 30.0
JUDGED_S = 60.0
"""A process that has lived for less beyond its warm-up is not judged."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """An invariant: whether it holds, and what was found."""

    name: str
    holds: bool
    found: str


@dataclass(frozen=True, slots=True)
class Sample:
    """What the services held at a moment of the load."""

    at_s: float
    levels: Mapping[Service, Levels]


def of_calls(num_asked: int, calls: Sequence[Ended], disturbances: Sequence[Disturbance]) -> Check:
    """Every call that was made has ended, and none failed."""
    fates = [fate(call, disturbances) for call in calls]
    counts = Counter(fates)
    found = f"{num_asked} asked = " + " + ".join(f"{counts[each]} {each}" for each in Fate)
    failed = [call for call, its in zip(calls, fates, strict=True) if its is Fate.FAILED]
    found += "".join(f"; {_told(call)}" for call in failed[:SHOWN])
    return Check("calls", not failed and len(calls) == num_asked and counts[Fate.FINISHED] > 0, found)


def _told(call: Ended) -> str:
    how = f"{call.error.reason}: {call.error.message}" if call.error else call.fault
    return f"{call.manner} from {call.asked_s:.1f} to {call.ended_s:.1f} s after {call.num_pieces} pieces: {how}"


def of_tally(tally: Mapping[str, int]) -> Check:
    """The scheduler, since it was last started, knows where each submission went."""
    fates = {name: count for name, count in tally.items() if name not in ("submitted", "displaced")}
    found = f"{tally['submitted']} submitted = " + " + ".join(f"{count} {name}" for name, count in fates.items())
    return Check("submissions", tally["submitted"] == sum(fates.values()), found)


def of_levels(before: Mapping[Service, Levels], after: Mapping[Service, Levels]) -> Check:
    """Nothing is held that was not held before the load: no block, slot, permit or lease."""
    left = [
        f"{service} {name} {value:g}, was {before[service].held[name]:g}"
        for service, levels in after.items()
        for name, value in levels.held.items()
        if value != before[service].held[name]
    ]
    silent = [service for service in before if service not in after]
    left += [f"{service} does not answer" for service in silent]
    num_levels = sum(len(levels.held) for levels in after.values())
    return Check("nothing held", not left, "; ".join(left) or f"{num_levels} levels as before the load")


def of_growth(samples: Sequence[Sample]) -> list[Check]:
    """Memory and open files of each process that has lived long enough are flat."""
    lives: dict[tuple[Service, float], list[tuple[float, Levels]]] = {}
    for sample in samples:
        for service, levels in sample.levels.items():
            lives.setdefault((service, levels.started_s), []).append((sample.at_s, levels))
    long_lives = {
        life: warm
        for life, points in lives.items()
        if (warm := [(at_s, levels) for at_s, levels in points if at_s >= points[0][0] + WARM_S])
        and warm[-1][0] - warm[0][0] >= JUDGED_S
    }
    memory = [(service, _growth([e.own_bytes for _, e in warm])) for (service, _), warm in long_lives.items()]
    files = [(service, _growth([e.num_files for _, e in warm])) for (service, _), warm in long_lives.items()]
    judged = f"of {len(lives)} processes, {len(long_lives)} lived long enough"
    return [
        Check(
            "memory flat",
            all(growth <= MAX_GROWTH_BYTES for _, growth in memory),
            "; ".join([judged, *(f"{service} {growth / 2**20:+.1f} MiB" for service, growth in memory)]),
        ),
        Check(
            "open files flat",
            all(growth <= MAX_GROWTH_FILES for _, growth in files),
            "; ".join([judged, *(f"{service} {growth:+.0f}" for service, growth in files)]),
        ),
    ]


def _growth(values: Sequence[float]) -> float:
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) - statistics.median(values[:quarter])


def of_files(left: Sequence[str]) -> Check:
    """The suite has left no file behind but the store of its results."""
    return Check("no file left", not left, ", ".join(left) or "only the results are there")


def of_processes(left: Sequence[int]) -> Check:
    """No process of the suite outlives it."""
    return Check("no process left", not left, ", ".join(map(str, left)) or "all have ended")
