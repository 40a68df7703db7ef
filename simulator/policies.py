"""Policies that a workload can be run under, by name: settings of the real machine, and how the fleet works."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.errors import InvalidRequest
from headrace.scheduler.policy.limits import Bounds, Limits, changed

LIMITS = Limits(Bounds(max_waiting_requests=10_000, max_waiting_tokens=20_000_000), lease_s=3.0, batch_tokens=16_384)
"""What the scheduler runs with where nothing else is said."""

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Policy:
    """`settings` go on top of the scenario's. `one_class`: the machine is told that all are NORMAL, the report is not.
    `static`: executors batch statically."""

    what: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    one_class: bool = False
    static: bool = False


POLICIES: dict[str, Policy] = {
    "default": Policy("as the scheduler is delivered"),
    "strict": Policy("classes in strict order, nobody is displaced", {"order": "strict"}),
    "fcfs": Policy("first come, first served; classes count for nothing", {"order": "fcfs"}, one_class=True),
    "calm": Policy("as delivered, but nobody is displaced", {"max_displacements": 0}),
    "static": Policy("fcfs in static batches, each padded to its longest", {"order": "fcfs"}, True, True),
}


def limits_of(*layers: Mapping[str, Setting]) -> Limits:
    """The defaults under the settings, the last layer on top. Raises InvalidRequest that names every fault."""
    merged = {name: value for layer in layers for name, value in layer.items()}
    live = {name: str(value) for name, value in merged.items() if name not in _FIXED}
    limits = changed(LIMITS, live)
    fixed = {name: value for name, value in merged.items() if name in _FIXED}
    for name, value in fixed.items():
        if isinstance(value, str) or not 0 <= value <= 3600:
            raise InvalidRequest(f"{name}: {value!r} is no number of seconds in 0..3600", field="policy")
    if fixed.get("lease_s") == 0:
        raise InvalidRequest("lease_s: must be above 0", field="policy")
    return dataclasses.replace(limits, **{name: float(value) for name, value in fixed.items()})  # type: ignore[arg-type]


_FIXED = ("lease_s", "grace_s")
"""Set once: a running scheduler does not take them."""
