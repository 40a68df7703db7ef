"""One text on its way through an encoder, as asked and as it stands. Pure state on the event loop, no gRPC."""

import asyncio
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from headrace.core.errors import HeadraceError
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
    """A text's state: waits for its placement, then for its values. Links put events in, the call takes them out."""

    def __init__(self, encoding: Encoding) -> None:
        self.generation = encoding
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
        """The executor failed it: nothing is left to cancel there."""
        self.executor_done = True
        self.fail(error)

    def fail(self, error: HeadraceError) -> None:
        """The first failure counts; none counts once the values are there."""
        if self._error is None and self._values is None:
            self._error = error
            self._wake.set()

    def decline(self, error: HeadraceError) -> None:
        """The scheduler has no place for it."""
        self.fail(error)

    def lose(self, error: HeadraceError) -> None:
        """The executor is gone."""
        self.fail(error)

    async def placement(self) -> Placement:
        """Waits until placed. Raises what failed the text."""
        while self.served_by is None:
            await self._event()
        return self.served_by

    async def values(self) -> NDArray[np.float32]:
        """Waits for the vector or the scores [N]. Raises what failed the text."""
        while self._values is None:
            await self._event()
        return self._values

    async def _event(self) -> None:
        if self._error is not None:
            raise self._error
        await self._wake.wait()
        self._wake.clear()
