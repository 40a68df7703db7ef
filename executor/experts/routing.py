"""What past steps say of the experts that will be asked for: by topic, and by the layer before. Pure.

Topics are found by k-means as vectors come (spherical, one pass: "Refining Initial Points", MacQueen 1967), so that no
model of them has to be trained. Experts of one topic's tokens, and pairs of experts in layers that follow each other,
are counted and fade. The idea of a semantic hint is that of MoE-Infinity (arXiv 2401.14361) and of prefetching by the
layer before that of Eliseev and Mazur (arXiv 2312.17238).
"""

import numpy as np
from numpy.typing import NDArray

from headrace.executor.engines.protocol import Float32, Int32

NO_TOPIC = -1
_FADE = 0.995
"""What is left of a count after a step."""
_PRIOR = 1.0
"""So many tokens' worth of everybody's experts stand in a topic of which nothing is known yet."""
_NEAR = 0.5
"""A vector whose cosine to all topics is less begins one of its own, while there are fewer than may be."""


class Topics:
    """Up to `most` directions of texts' vectors."""

    def __init__(self, most: int = 16) -> None:
        self.most = most
        self._centres: list[Float32] = []
        self._counts: list[int] = []

    @property
    def num_topics(self) -> int:
        return len(self._centres)

    def of(self, vector: Float32 | None) -> int:
        """The topic of a text with this vector [D], which the topic learns from; NO_TOPIC without one, and for one of
        another length than the first or that has no direction."""
        if vector is None or not vector.size or (self._centres and len(vector) != len(self._centres[0])):
            return NO_TOPIC
        length = float(np.linalg.norm(vector))
        if not np.isfinite(length) or length == 0:
            return NO_TOPIC
        unit = vector / np.float32(length)
        if self._centres:
            near = np.array([float(centre @ unit) for centre in self._centres])
            best = int(near.argmax())
            if near[best] >= _NEAR or len(self._centres) == self.most:
                self._counts[best] += 1
                moved = self._centres[best] + (unit - self._centres[best]) / self._counts[best]
                self._centres[best] = (moved / max(float(np.linalg.norm(moved)), 1e-6)).astype(np.float32)
                return best
        self._centres.append(unit.astype(np.float32))
        self._counts.append(1)
        return len(self._centres) - 1


class RoutingHistory:
    """Counts of `num_experts` experts in `num_layers` layers for up to `num_topics` topics."""

    def __init__(self, num_layers: int, num_experts: int, num_topics: int) -> None:
        self.num_layers, self.num_experts = num_layers, num_experts
        # the last row is everybody's
        self._by_topic: Float32 = np.zeros((num_topics + 1, num_layers, num_experts), np.float32)
        self._pairs: Float32 = np.zeros((max(0, num_layers - 1), num_experts, num_experts), np.float32)
        self._before: Float32 | None = None

    def observe(self, layer: int, experts: NDArray[np.int64], topics: Int32 | None = None) -> Float32:
        """A step's tokens asked for `experts` [T, K] in a layer; `topics` [T] are theirs, NO_TOPIC for none. Returns
        how often each expert was asked for [E]. Layers of one step come in order."""
        chosen: Float32 = np.zeros((len(experts), self.num_experts), np.float32)
        np.put_along_axis(chosen, experts, np.float32(1), axis=1)
        counts: Float32 = chosen.sum(axis=0)
        history = self._by_topic[:, layer]
        history *= _FADE
        history[-1] += counts
        if topics is not None:
            for topic in np.unique(topics[topics >= 0]):
                history[topic] += chosen[topics == topic].sum(axis=0)
        if layer and self._before is not None and len(self._before) == len(chosen):
            pairs = self._pairs[layer - 1]
            pairs *= _FADE
            pairs += self._before.T @ chosen
        self._before = chosen
        return counts

    def of_topic(self, layer: int, topic: int) -> Float32:
        """Each expert's share [E] of the requests of a topic's tokens; of a new topic, or of none, everybody's."""
        everybody = _shares(self._by_topic[-1, layer])
        if topic < 0:
            return everybody
        return _shares(self._by_topic[topic, layer] + _PRIOR * everybody)

    def after(self, layer: int, counts: Float32) -> Float32:
        """Shares [E] of the layer that follows, where experts of `layer` are asked for as often as `counts` [E]."""
        pairs = self._pairs[layer]
        totals = pairs.sum(axis=1, keepdims=True)
        shares = np.divide(pairs, totals, out=np.zeros_like(pairs), where=totals > 0)
        return _shares(counts @ shares)


def _shares(counts: Float32) -> Float32:
    """That add up to 1, or are all 0."""
    total = counts.sum()
    shares: Float32 = counts / total if total > 0 else counts
    return shares
