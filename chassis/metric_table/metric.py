"""What is stated of a metric: name, labels, meaning, unit, and what to do when it is high.

Label values are few and known beforehand: classes, error reasons, models that the service has. A tenant is never one.
"""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "headrace_"
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Kind(StrEnum):
    """A counter only grows; a gauge is how it stands now; a histogram counts what was seen by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` as it is scraped; `services` that have it; `buckets` are a histogram's upper edges, in `unit`."""

    name: str
    kind: Kind
    services: tuple[str, ...]
    labels: tuple[str, ...]
    unit: str
    meaning: str
    when_high: str
    buckets: tuple[float, ...] = ()


def counter(name: str, services: tuple[str, ...], labels: str, unit: str, meaning: str, when_high: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", Kind.COUNTER, services, tuple(labels.split()), unit, meaning, when_high)


def gauge(name: str, services: tuple[str, ...], labels: str, unit: str, meaning: str, when_high: str) -> Metric:
    return Metric(f"{PREFIX}{name}", Kind.GAUGE, services, tuple(labels.split()), unit, meaning, when_high)


def histogram(
    name: str,
    services: tuple[str, ...],
    labels: str,
    unit: str,
    meaning: str,
    when_high: str,
    buckets: tuple[float, ...],
) -> Metric:
    return Metric(PREFIX + name, Kind.HISTOGRAM, services, tuple(labels.split()), unit, meaning, when_high, buckets)
