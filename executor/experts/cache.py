"""Experts as a step asks for them: what is on the device is used at once, the rest is fetched meanwhile.

It owns which expert is where and what is counted of it; the rules are `residency`'s and `routing`'s, the bytes
`copies`'. All of it is called from the step loop's thread.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.executor.engines.protocol import Float32, Int32
from headrace.executor.experts.copies import ExpertCopies, Load
from headrace.executor.experts.counts import ExpertCounts
from headrace.executor.experts.residency import Residency, choose_ahead
from headrace.executor.experts.routing import NO_TOPIC, RoutingHistory, Topics

MOST_AHEAD = 2
"""Copies under way that nobody waits for yet: more would stand before one that is waited for."""


class ExpertCache:
    """`num_slots` places for experts in each layer, filled by `copies`, `expert_bytes` at a time.

    With `ahead` experts are fetched before they are asked for: those that follow on the running layer's, and at
    `admit` those of a request's topic.
    """

    def __init__(
        self,
        num_layers: int,
        num_experts: int,
        num_slots: int,
        expert_bytes: int,
        copies: ExpertCopies,
        *,
        ahead: bool = True,
    ) -> None:
        self.counts = ExpertCounts()
        self.topics = Topics()
        self.history = RoutingHistory(num_layers, num_experts, self.topics.most)
        self._residencies = [Residency(num_slots) for _ in range(num_layers)]
        self._expert_bytes = expert_bytes
        self._copies = copies
        self._ahead = ahead
        self._loads: dict[tuple[int, int], Load] = {}
        self._unused: set[tuple[int, int]] = set()  # fetched ahead, not asked for yet
        self._wanted: list[tuple[int, int]] = []  # by topics of new requests, for when the link is free

    def admit(self, vector: Float32 | None, num_each: int) -> int:
        """A request joins whose text has this vector: its topic. The `num_each` experts of each layer that the topic
        asks for most are fetched while nothing else has to be."""
        topic = self.topics.of(vector)
        if self._ahead and topic >= 0:
            self._wanted = [
                (layer, int(expert))
                for layer in range(self.history.num_layers)
                for expert in np.argsort(-self.history.of_topic(layer, topic), kind="stable")[:num_each]
            ]
            self._fetch_wanted()
        return topic

    def resident(self, layer: int) -> Sequence[int]:
        """For tests and reports: who has a place, the one used least lately first."""
        return self._residencies[layer].experts

    def in_turn(self, layer: int, experts: NDArray[np.int64], topics: Int32 | None = None) -> Iterator[tuple[int, int]]:
        """(expert, slot) of each expert that a layer's tokens ask for (`experts` [T, K]), once it is there and until
        the next is taken: first those that are on the device. Close the iterator where it is not used up.

        `topics` [T] as in RoutingHistory. Raises DeviceFault where a copy does not come in time.
        """
        residency = self._residencies[layer]
        per_expert = self.history.observe(layer, experts, topics)
        asked = np.flatnonzero(per_expert).tolist()
        there = [expert for expert in asked if expert in residency]
        missing = deque(expert for expert in asked if expert not in residency)
        self._count(layer, there, len(missing))
        for expert in there:
            residency.lock(expert)
        # those whose copies are under way come after those that can be used at once
        turn = deque(sorted(there, key=lambda expert: (layer, expert) in self._loads))
        for expert in there:
            if (load := self._loads.get((layer, expert))) is not None:
                load.hurry()
        try:
            self._fetch_missing(layer, missing, turn)
            if self._ahead:
                self._fetch_next(layer + 1, per_expert, topics)
                self._fetch_wanted()
            while turn or missing:
                if not turn:  # all places wait for copies that were begun ahead
                    self._await(layer, next(each for at, each in self._loads if at == layer))
                    self._fetch_missing(layer, missing, turn)
                    continue
                expert = turn[0]
                self._await(layer, expert)
                residency.touch(expert)
                slot = residency.slot(expert)
                try:
                    yield expert, slot
                finally:
                    self._copies.used(layer, slot)
                residency.unlock(turn.popleft())
                self._fetch_missing(layer, missing, turn)
        finally:
            for expert in turn:
                residency.unlock(expert)

    def settle(self) -> None:
        """Waits for all copies under way."""
        for layer, expert in list(self._loads):
            self._loads[layer, expert].wait()
        self._reap()

    def _fetch_missing(self, layer: int, missing: deque[int], turn: deque[int]) -> None:
        """Begins copies of as many as there are places for; they are locked, and wait for their turn."""
        if not missing:
            return
        self._reap()
        while missing and self._fetch(layer, missing[0], urgent=True):
            self._residencies[layer].lock(missing[0])
            turn.append(missing.popleft())

    def _fetch_next(self, layer: int, before: Float32, topics: Int32 | None) -> None:
        """Experts of the next layer, by those that the layer `before` it is asked for [E] and by the tokens' topics."""
        if layer == self.history.num_layers or (most := self._room_ahead()) <= 0:
            return
        scores = self.history.after(layer - 1, before) + self._by_topics(layer, topics)
        residency = self._residencies[layer]
        num_free = residency.num_slots - len(residency.experts)
        for each in choose_ahead(scores, residency.experts, residency.evictable, num_free, most):
            self._fetch(layer, each.expert, urgent=False, instead=each.instead)

    def _by_topics(self, layer: int, topics: Int32 | None) -> Float32:
        if topics is None:
            return self.history.of_topic(layer, NO_TOPIC)
        numbers, tokens = np.unique(topics, return_counts=True)
        shares = [
            self.history.of_topic(layer, int(topic)) * count for topic, count in zip(numbers, tokens, strict=True)
        ]
        mixed: Float32 = (np.sum(shares, axis=0) / max(1, len(topics))).astype(np.float32)
        return mixed

    def _fetch_wanted(self) -> None:
        """What new requests' topics ask for, while the link has nothing better to do: into free places, or those that
        were used least lately."""
        while self._wanted and self._room_ahead() > 0:
            layer, expert = self._wanted.pop(0)
            if expert not in self._residencies[layer]:
                self._fetch(layer, expert, urgent=False)

    def _room_ahead(self) -> int:
        self._reap()
        return MOST_AHEAD - len(self._loads)

    def _fetch(self, layer: int, expert: int, *, urgent: bool, instead: int | None = None) -> bool:
        """Whether there is a place for it; then its copy is under way."""
        placed = self._residencies[layer].place(expert, instead)
        if placed is None:
            return False
        if placed.evicted is not None and (layer, placed.evicted) in self._unused:
            self._unused.discard((layer, placed.evicted))
            self.counts = replace(self.counts, num_wasted=self.counts.num_wasted + 1)
        self._loads[layer, expert] = self._copies.start(layer, expert, placed.slot, urgent=urgent)
        self._residencies[layer].lock(expert)  # until the copy is made
        if urgent:
            self.counts = replace(self.counts, demand_bytes=self.counts.demand_bytes + self._expert_bytes)
        else:
            self._unused.add((layer, expert))
            self.counts = replace(self.counts, ahead_bytes=self.counts.ahead_bytes + self._expert_bytes)
        return True

    def _await(self, layer: int, expert: int) -> None:
        if (load := self._loads.get((layer, expert))) is None:
            return
        if not load.done():
            begun = time.perf_counter()
            load.hurry()
            load.wait()
            self.counts = replace(self.counts, stall_s=self.counts.stall_s + time.perf_counter() - begun)
        self._reap()

    def _reap(self) -> None:
        """Copies that have been made hold their places no longer."""
        for layer, expert in [key for key, load in self._loads.items() if load.done()]:
            del self._loads[layer, expert]
            self._residencies[layer].unlock(expert)

    def _count(self, layer: int, there: Sequence[int], num_misses: int) -> None:
        early = {(layer, expert) for expert in there} & self._unused
        self._unused -= early
        self.counts = replace(
            self.counts,
            num_hits=self.counts.num_hits + len(there) - len(early),
            num_early=self.counts.num_early + len(early),
            num_misses=self.counts.num_misses + num_misses,
        )
