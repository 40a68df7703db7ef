"""One text to encode, and what became of it. Plain values; `trace` goes through untouched."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.core.errors import HeadraceError


class Pooling(IntEnum):
    """How token vectors become one. Values equal those on the wire."""

    MEAN = 1
    CLS = 2
    LAST = 3


@dataclass(frozen=True, slots=True)
class Task:
    """`token_ids` [T]; of them the first `first_tokens` are of the first of two texts.

    `row_tokens` is the length of its batch's rows, where texts share them; 0: not known. `scores` asks for the head's
    output, else for a vector: pooled, of length 1 with `normalize`, cut to `dimensions` (0: whole). `deadline` is on
    the monotonic clock, `received_ns` on the wall's.
    """

    session: int
    request_id: str
    token_ids: NDArray[np.uint32]
    first_tokens: int
    batch_id: str
    batch_size: int
    row_tokens: int
    scores: bool
    pooling: Pooling
    normalize: bool
    dimensions: int
    deadline: float | None
    trace: TraceContext
    batch_trace: TraceContext
    received_ns: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The forwards of one batch: when it ran, how many texts it had, their tokens and the padding beside them."""

    batch_id: str
    began_ns: int
    ended_ns: int
    num_texts: int
    num_tokens: int
    padding_tokens: int


@dataclass(frozen=True, slots=True)
class Done:
    """A task's values [N] or its failure. `batch` and `padded_tokens` where it has run."""

    task: Task
    values: NDArray[np.float32] | None = None
    error: HeadraceError | None = None
    batch: Batch | None = None
    padded_tokens: int = 0
