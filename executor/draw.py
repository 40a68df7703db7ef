"""The arithmetic of choosing a token: pure functions over one row of logits, no state.

A filter (top-k, top-p, min-p) keeps a prefix of the row's tokens in descending order, so a draw needs only as long a
prefix as holds the answer. `draw` says when a prefix is too short, and gives the same token on every longer one: each
number that it uses (weights, running sums, the normaliser) is the same however long the prefix is.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import Sampling

Ids = NDArray[np.integer]
Logits = NDArray[np.floating]


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1), in steps of 2**-53, from the counter-based generator Philox4x64-10 (Salmon et al., Parallel
    random numbers: as easy as 1, 2, 3, 2011; numpy's implementation) keyed by (seed, index) with counter `position`."""
    word = np.random.Philox(key=seed | index << 64, counter=position).random_raw()
    return float((int(word) >> 11) * 2.0**-53)


def ordered_prefix(logits: Logits, count: int) -> Ids:
    """The ids of at least `count` greatest logits [V] in descending order, equal ones by lower id; `count` is 1 to V.

    All tokens that tie with the last are in it, so it is a true prefix of the whole order."""
    if count < len(logits):
        least = np.partition(logits, len(logits) - count)[len(logits) - count]
        ids = np.flatnonzero(logits >= least)
    else:
        ids = np.arange(len(logits))
    return ids[np.argsort(-logits[ids], kind="stable")]


def weights(logits: Logits, greatest: float, temperature: float) -> NDArray[np.float64]:
    """exp((logit - greatest) / temperature), float64; `greatest` is the row's greatest logit, so the largest is 1."""
    scaled = logits.astype(np.float64)
    scaled -= greatest
    with np.errstate(over="ignore", under="ignore"):
        scaled /= temperature
        return np.exp(scaled, out=scaled)


def log_normaliser(logits: Logits) -> float:
    """log(sum(exp(logits))), float64, summed in the row's order."""
    greatest = float(logits.max())
    return greatest + float(np.log(weights(logits, greatest, 1.0).sum()))


def draw(
    descending: Logits, complete: bool, sampling: Sampling, point: float, normaliser: Callable[[], float]
) -> int | None:
    """The place in `descending` of the token drawn at `point` in [0, 1), by inverse CDF; None: the prefix is too short.

    `descending` holds the row's greatest logits in order; `complete` says that it holds the whole row. `normaliser` is
    the sum of all the row's weights, asked for only when it matters. Filters apply in the order top-k, top-p, min-p.
    """
    weight = weights(descending, float(descending[0]), sampling.temperature)
    if sampling.top_k:
        if sampling.top_k > len(weight) and not complete:
            return None
        weight, complete = weight[: sampling.top_k], True
    running = np.cumsum(weight)
    kept: int | None = len(weight) if sampling.top_k else None  # how many tokens pass; None: the prefix does not say
    if sampling.top_p < 1:
        total = float(running[-1]) if sampling.top_k else normaliser()
        enough = int(np.searchsorted(running, sampling.top_p * total)) + 1
        kept = enough if enough <= len(weight) else kept
    if sampling.min_p > 0:
        likely = int(np.searchsorted(-weight, -sampling.min_p, side="right"))
        if likely < len(weight):
            kept = likely if kept is None else min(kept, likely)
    if kept is None and (sampling.top_p < 1 or sampling.min_p > 0):
        if not complete:
            return None
        kept = len(weight)
    total = normaliser() if kept is None else float(running[kept - 1])
    place = int(np.searchsorted(running[:kept], point * total, side="right"))
    if place < (kept or len(weight)):
        return place
    # the last sum rounded to below the point: the last token that can be drawn at all, or one beyond the prefix
    return int(np.flatnonzero(weight[:kept])[-1]) if complete or kept is not None else None
