"""What two scrapes of a suite's metrics say together. Pure; fetching is scraping.py's."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Snapshot = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by sample name and labels, of all services together; the label `at` says from which address."""

AT = "at"


@dataclass(frozen=True, slots=True)
class Figures:
    """Two snapshots, `seconds` apart. Names go without `headrace_`; labels that are not named are summed over."""

    before: Snapshot
    after: Snapshot
    seconds: float

    def level(self, name: str, **labels: str) -> float:
        """A gauge, or a counter's total, now; 0 where it is not there."""
        return _sum(self.after, name, labels)

    def grown(self, name: str, **labels: str) -> float:
        """By how much a counter has grown; one that began anew counts from 0."""
        before, after = _sum(self.before, name, labels), _sum(self.after, name, labels)
        return after - before if after >= before else after

    def rate(self, name: str, **labels: str) -> float:
        """A counter's growth a second."""
        return self.grown(name, **labels) / self.seconds

    def mean(self, name: str, **labels: str) -> float:
        """What a histogram saw on average in between; 0 where it saw nothing."""
        count = self.grown(f"{name}_count", **labels)
        return self.grown(f"{name}_sum", **labels) / count if count else 0.0

    def values(self, name: str, label: str) -> list[str]:
        """The values that this label of a metric has now, sorted."""
        return sorted(
            {
                value
                for (found, has), _ in self.after.items()
                if found == f"headrace_{name}"
                for key, value in has
                if key == label
            }
        )

    def services(self, name: str) -> "dict[str, Figures]":
        """Of each service that has this metric, its own figures, by address."""
        return {address: self._of(address) for address in self.values(name, AT)}

    def _of(self, address: str) -> "Figures":
        before, after = (
            {key: value for key, value in snapshot.items() if (AT, address) in key[1]}
            for snapshot in (self.before, self.after)
        )
        return Figures(before, after, self.seconds)


def _sum(snapshot: Snapshot, name: str, labels: Mapping[str, str]) -> float:
    wanted = set(labels.items())
    return sum(value for (found, has), value in snapshot.items() if found == f"headrace_{name}" and wanted <= has)


def parse(pages: Mapping[str, str]) -> Snapshot:
    """The snapshot of all services' pages, which come by address."""
    return {
        (sample.name, frozenset({*sample.labels.items(), (AT, address)})): float(sample.value)
        for address, page in pages.items()
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
