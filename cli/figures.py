"""Metrics of a running suite as they are scraped, and what two scrapes say together. Fetching stands at the end."""

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from headrace.chassis.certificates import Certificates
from headrace.chassis.credentials import client_context
from headrace.cli.reach import tls
from headrace.core.errors import Unavailable
from headrace.core.role import Role

Snapshot = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by sample name and labels, of all services together."""

NUM_SERVICES = 5
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Two snapshots, `seconds` apart. Names go without `headrace_`; labels that are not named are summed over."""

    before: Snapshot
    after: Snapshot
    seconds: float

    def level(self, name: str, **labels: str) -> float:
        """A gauge now; 0 where it is not there."""
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


def _sum(snapshot: Snapshot, name: str, labels: Mapping[str, str]) -> float:
    wanted = set(labels.items())
    return sum(value for (found, has), value in snapshot.items() if found == f"headrace_{name}" and wanted <= has)


def parse(texts: Sequence[str]) -> Snapshot:
    """The snapshot of all services' pages. A label `service_index` keeps services apart."""
    return {
        (sample.name, frozenset({*sample.labels.items(), ("service_index", str(place))})): float(sample.value)
        for place, text in enumerate(texts)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(port: int) -> Snapshot:
    """Of a suite that runs with `--metrics-port`. Raises Unavailable where nobody answers on any of its ports."""
    own = tls(Role.PROBER)
    context = client_context(Certificates(own, server=False).current()) if own else None
    texts = [text for place in range(NUM_SERVICES) if (text := _page(port + place, context))]
    if not texts:
        raise Unavailable(f"no metrics at ports {port} to {port + NUM_SERVICES - 1}: headrace up --metrics-port {port}")
    return parse(texts)


def _page(port: int, context: ssl.SSLContext | None) -> str:
    try:
        scheme = "https" if context else "http"
        with urllib.request.urlopen(
            f"{scheme}://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S, context=context
        ) as answer:
            page: str = answer.read().decode()
            return page
    except (urllib.error.URLError, TimeoutError):
        return ""


async def watched(port: int, seconds: float) -> Figures:
    """What happens in so many seconds from now. Raises Unavailable."""
    before = await asyncio.to_thread(scrape, port)
    await asyncio.sleep(seconds)
    return Figures(before, await asyncio.to_thread(scrape, port), seconds)
