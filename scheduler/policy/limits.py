"""The policy's settings: how they are checked, and how a running scheduler takes new ones."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.core.errors import InvalidRequest
from headrace.core.precision import DEFAULT_RULES, parse_rules


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of each class. A class with nobody waiting takes any one request."""

    max_waiting_requests: int
    max_waiting_tokens: int


class Order(StrEnum):
    """Who goes first. QOS is the product's; the other two are there to compare with."""

    QOS = "qos"
    STRICT = "strict"  # classes in strict order, first come first served inside, nobody is displaced
    FCFS = "fcfs"  # classes count for nothing


class BucketRule(StrEnum):
    """How a padded model's requests are grouped by length. ADAPTIVE is the product's; the others are published ones."""

    ADAPTIVE = "adaptive"
    FIXED32 = "fixed32"
    POWER_OF_TWO = "power_of_two"


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the policy. Tokens count prompt and expected answer; shares are of 1.

    `batch_tokens` is the most prompt tokens of one batch of several members. `batch_share` is BATCH's part beside
    NORMAL up to `quota_load`; from there it falls in a straight line to `batch_floor` at full load. A REALTIME request
    that has waited for `realtime_wait_s`, or another for `longest_wait_s`, goes out of turn. `grace_s` is how long
    after its start the scheduler lets requests wait for executors to enlist. A padded batch behind a device that is
    late waits for `window_ms` at most. `precision_rules` say what serves requests without a wish: see
    `headrace.core.precision.parse_rules`.
    """

    bounds: Bounds
    lease_s: float
    batch_tokens: int
    start_timeout_s: float = 10.0
    grace_s: float = 0.0
    order: Order = Order.QOS
    realtime_wait_s: float = 2.0
    longest_wait_s: float = 60.0
    batch_share: float = 0.5
    batch_floor: float = 0.05
    quota_load: float = 0.7
    max_displacements: int = 2
    window_ms: float = 50.0
    buckets: BucketRule = BucketRule.ADAPTIVE
    precision_rules: str = DEFAULT_RULES


_RANGES: dict[str, tuple[float, float]] = {
    "max_waiting_requests": (1, 10_000_000),
    "max_waiting_tokens": (1, 10**12),
    "batch_tokens": (1, 10**9),
    "start_timeout_s": (0.1, 3600),
    "realtime_wait_s": (0, 3600),
    "longest_wait_s": (0, 86_400),
    "batch_share": (0.01, 0.99),
    "batch_floor": (0.01, 0.99),
    "quota_load": (0, 0.99),
    "max_displacements": (0, 1000),
    "window_ms": (0, 60_000),
}
_CHOICES: dict[str, type[StrEnum]] = {"order": Order, "buckets": BucketRule}
LIVE = (*_RANGES, *_CHOICES, "precision_rules")
"""What may change while the scheduler runs."""


def live_values(limits: Limits) -> dict[str, str]:
    """The settings that `changed` takes, as text."""
    flat = {**dataclasses.asdict(limits), **dataclasses.asdict(limits.bounds)}
    return {name: str(flat[name]) for name in LIVE}


def changed(limits: Limits, changes: Mapping[str, str]) -> Limits:
    """The limits with some settings replaced. Raises InvalidRequest that names every fault, and changes nothing."""
    faults: list[str] = []
    values: dict[str, float | int | str] = {}
    flat = {**dataclasses.asdict(limits), **dataclasses.asdict(limits.bounds)}
    for name, text in changes.items():
        if name == "precision_rules":
            try:
                parse_rules(text)
            except ValueError as error:
                faults.append(f"{name}: {error}")
            values[name] = text
            continue
        if name not in LIVE:
            faults.append(f"{name}: no such setting; there are {', '.join(LIVE)}")
            continue
        try:
            value = _CHOICES.get(name, type(flat[name]))(text)
        except ValueError:
            kind = _CHOICES.get(name)
            wanted = ", ".join(kind) if kind else f"a number ({type(flat[name]).__name__})"
            faults.append(f"{name}: {text!r} is not {wanted}")
            continue
        values[name] = value
        if name in _RANGES:
            low, high = _RANGES[name]
            if not low <= value <= high:  # also refuses NaN
                faults.append(f"{name}: {text} is outside {low:g}..{high:g}")
    named = {field.name for field in dataclasses.fields(Bounds)}
    bounds = dataclasses.replace(limits.bounds, **{k: v for k, v in values.items() if k in named})  # type: ignore[arg-type]
    new = dataclasses.replace(limits, bounds=bounds, **{k: v for k, v in values.items() if k not in named})  # type: ignore[arg-type]
    if not faults and new.batch_floor > new.batch_share:
        faults.append(f"batch_floor: {new.batch_floor:g} is above batch_share, {new.batch_share:g}")
    if faults:
        raise InvalidRequest("; ".join(faults), field="settings")
    return new
