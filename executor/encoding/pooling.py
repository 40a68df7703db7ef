"""A text's token vectors to its one vector. Row by row, so that no neighbour can change a bit of it."""

import numpy as np
from numpy.typing import NDArray

from headrace.executor.encoding.task import Pooling

Float32 = NDArray[np.float32]


def pooled(hidden: Float32, pooling: Pooling, *, normalize: bool, dimensions: int) -> Float32:
    """[T, H] without padding -> [H], or the first `dimensions` of it (0: all); of length 1 with `normalize`."""
    vector: Float32 = {
        Pooling.MEAN: lambda: hidden.mean(axis=0, dtype=np.float32),
        Pooling.CLS: lambda: hidden[0],
        Pooling.LAST: lambda: hidden[-1],
    }[pooling]()
    vector = np.array(vector[: dimensions or None], np.float32)
    if normalize and (length := np.linalg.norm(vector)) > 0:
        vector /= length
    return vector
