"""What the requests of this door came to, for each model, since the gateway's start. Batches are the executors'."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.api.inference import inference_pb2 as pb
from headrace.gateway.kserve.catalogue import VERSION


@dataclass(slots=True)
class _Model:
    succeeded: int = 0
    succeeded_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    inferences: int = 0
    last_s: float = 0.0


class Statistics:
    """One event loop owns it. Models are those that the gateway knows, so there are never many."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    @contextmanager
    def request(self, model: str, inferences: int) -> Iterator[None]:
        """Counts one request of so many inferences, by how its block ends and how long it takes."""
        counts = self._models.setdefault(model, _Model())
        counts.last_s, began_ns = time.time(), time.perf_counter_ns()
        try:
            yield
        except BaseException:
            counts.failed += 1
            counts.failed_ns += time.perf_counter_ns() - began_ns
            raise
        counts.succeeded += 1
        counts.succeeded_ns += time.perf_counter_ns() - began_ns
        counts.inferences += inferences

    def of(self, model: str) -> pb.ModelStatistics:
        """Zeros for a model that nobody has asked yet."""
        counts = self._models.get(model, _Model())
        return pb.ModelStatistics(
            name=model,
            version=VERSION,
            last_inference=round(counts.last_s * 1000),
            inference_count=counts.inferences,
            inference_stats=pb.InferStatistics(
                success=pb.StatisticDuration(count=counts.succeeded, ns=counts.succeeded_ns),
                fail=pb.StatisticDuration(count=counts.failed, ns=counts.failed_ns),
            ),
        )
