"""One text on its way through an encoder, as asked and as it stands. Pure state on the event loop, no gRPC."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from headrace.core.errors import HeadraceError, Unavailable
from headrace.core.model import ModelInfo
from headrace.core.request import Precision, QosClass
from headrace.gateway.generation import Placement


@dataclass(frozen=True, slots=True)
class Readout:
    """What is taken from a text: the head's scores, or a vector. `pooling` as on the wire; `dimensions` 0: all."""

    scores: bool = False
    pooling: int = 0
    normalize: bool = True
    dimensions: int = 0


@dataclass(frozen=True, slots=True)
class Encoding:
    """What goes to the scheduler (numbers) and to an executor (payload). `wire_id` is never used twice.

    The first `first_tokens` of `token_ids` are of the first of two texts. `deadline` is on the event loop's clock.
    """

    wire_id: str
    model: ModelInfo
    token_ids: NDArray[np.uint32]
    first_tokens: int
    readout: Readout
    qos: QosClass
    precision: Precision
    tenant: str
    deadline: float | None
    trace: SpanContext


class EncodingRelay:
    """A text's state: waits for its placement, then for its values. Links put events in, the call takes them out.

    Where its executor is lost it waits for a placement again, under a new wire id, up to `max_failovers` times.
    """

    def __init__(self, encoding: Encoding, max_failovers: int = 0) -> None:
        self.generation = encoding
        self.num_failovers = 0
        self._max_failovers = max_failovers
        self._first_wire_id = encoding.wire_id
        self._declined: HeadraceError | None = None
        self.served_by: Placement | None = None
        self.executor_done = False
        self._error: HeadraceError | None = None
        self._values: NDArray[np.float32] | None = None
        self._wake = asyncio.Event()

    def place(self, placement: Placement) -> bool:
        """False where the text has failed: the placement is not used."""
        if self._error is not None:
            return False
        self.served_by = placement
        self._wake.set()
        return True

    def answer(self, data: bytes) -> None:
        """The values, little-endian float32."""
        self.executor_done = True
        self._values = np.frombuffer(data, "<f4")
        self._wake.set()

    def refused(self, error: HeadraceError) -> None:
        """The executor failed it: nothing is left to cancel there. One that was leaving counts as lost."""
        if isinstance(error, Unavailable):
            self.lose(error)
            return
        self.executor_done = True
        self.fail(error)

    def fail(self, error: HeadraceError) -> None:
        """The first failure counts; none counts once the values are there."""
        if self._error is None and self._values is None:
            self._error = error
            self._wake.set()

    def decline(self, error: HeadraceError) -> None:
        """The scheduler has no place for it: `placement` raises, and what that means is for its caller to say."""
        self._declined = error
        self._wake.set()

    def lose(self, error: HeadraceError) -> None:
        """The executor is gone."""
        if self._values is not None or self._error is not None:
            return
        if self.num_failovers == self._max_failovers:
            self.fail(error)
            return
        self.num_failovers += 1
        self.generation = replace(self.generation, wire_id=f"{self._first_wire_id}.{self.num_failovers}")
        self.served_by = None
        self._wake.set()

    async def placement(self) -> Placement:
        """Waits until placed. Raises what failed the text, or why the scheduler declined it."""
        while self.served_by is None:
            if self._declined is not None:
                declined, self._declined = self._declined, None
                raise declined
            await self._event()
        return self.served_by

    async def values(self) -> NDArray[np.float32] | None:
        """Waits for the vector or the scores [N]; None where the executor was lost. Raises what failed the text."""
        while self._values is None:
            if self.served_by is None:
                return None
            await self._event()
        return self._values

    async def _event(self) -> None:
        if self._error is not None:
            raise self._error
        await self._wake.wait()
        self._wake.clear()
