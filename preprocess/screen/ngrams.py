"""Hashed character n-grams of a text: cheap features that know no language and no vocabulary.

The sentence encoder's tokenizer is English and sees most Chinese characters as unknown; these see them all.
"""

import numpy as np
from numpy.typing import NDArray

NUM_BUCKETS = 2**16
SIZES = (2, 3, 4)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SPACE = ord(" ")


def ngrams(text: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Buckets [K], each once, and their weights [K] with a Euclidean length of 1; both empty for a blank text.

    Runs of white space count as one, case does not count, and no n-gram goes over a word's end.
    """
    words = " ".join(text.lower().split())
    if not words:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    points = np.frombuffer(f" {words} ".encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    space = points == _SPACE
    buckets, counts = np.unique(np.concatenate([_hashes(points, space, size) for size in SIZES]), return_counts=True)
    weights = counts.astype(np.float32)
    return buckets.astype(np.int64), weights / np.linalg.norm(weights)


def _hashes(points: NDArray[np.uint64], space: NDArray[np.bool_], size: int) -> NDArray[np.uint64]:
    """The bucket of each n-gram of one size that has no space inside."""
    count = max(0, len(points) - size + 1)
    hashed = np.full(count, size, np.uint64)
    inside = np.zeros(count, np.bool_)
    for offset in range(size):
        hashed = (hashed ^ points[offset : offset + count]) * _PRIME
        if 0 < offset < size - 1:
            inside |= space[offset : offset + count]
    return ((hashed * _MIX) >> np.uint64(64 - 16))[~inside]
