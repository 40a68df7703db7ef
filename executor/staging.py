"""Where a step's rows are gathered for the engine: once, into memory that it reads as it is."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.executor.engines.protocol import EngineSpec, Int32, Int64

_ALIGN_BYTES = 64  # a cache line, and as wide as a vector gets
MOST_DUMMIES = 16
"""Rows without a sequence, in an engine that wants no more of them."""


@dataclass(frozen=True, slots=True)
class StagingRows:
    """The arrays of a StepPlan at their largest: [T] tokens, [B] rows, [N] blocks; a plan has their beginnings."""

    token_ids: Int64
    wanted_tokens: Int64
    past_lens: Int32
    subsequence_begins: Int32
    block_indices_begins: Int32
    block_indices: Int32


def staging_bytes(spec: EngineSpec, step_tokens: int) -> int:
    """What the rows of a step of so many tokens, with `MOST_DUMMIES` or `min_rows` dummies, can take."""
    return sum(_aligned(length * np.dtype(kind).itemsize) for length, kind in _parts(spec, step_tokens))


def staging_rows(memory: memoryview, spec: EngineSpec, step_tokens: int) -> StagingRows:
    """The arrays over memory of `staging_bytes` at least."""
    arrays, begin = [], 0
    for length, kind in _parts(spec, step_tokens):
        array: NDArray[Any] = np.ndarray(length, kind, buffer=memory, offset=begin)
        arrays.append(array)
        begin += _aligned(array.nbytes)
    return StagingRows(*arrays)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def _parts(spec: EngineSpec, step_tokens: int) -> list[tuple[int, type[np.generic]]]:
    """As StagingRows has them. A row has a token at least, and blocks for a context at most."""
    most = step_tokens + max(MOST_DUMMIES, spec.min_rows)
    blocks = most * -(-spec.context_tokens // spec.block_tokens)
    return [
        (most, np.int64),
        (most, np.int64),
        (most, np.int32),
        (most + 1, np.int32),
        (most + 1, np.int32),
        (blocks, np.int32),
    ]
