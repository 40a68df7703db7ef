"""Executors that take work, found by model and precision."""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.precision import SERVED_BY
from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepModel
from headrace.scheduler.policy.events import ExecutorEnlisted, LoadedModel, Padding
from headrace.scheduler.policy.ledger import Ledger, Shape

if TYPE_CHECKING:
    from headrace.scheduler.policy.flights import Flight

Choices = dict[str, dict[Precision, frozenset[tuple[Shape, int]]]]
"""The precisions of each model that is loaded in several, with the capacities and contexts that each has."""


@dataclass(slots=True, eq=False)
class Executor:
    """A member: what it has loaded, and what of it is promised. `number` is its place among equals."""

    executor_id: str
    address: str
    models: tuple[LoadedModel, ...]
    ledger: Ledger
    steps: StepModel  # what its steps take, shared by those whose steps are alike
    number: int
    draining: bool = False
    pools: "list[Pool]" = field(default_factory=list)
    version: int = 0  # of what the pools have been told
    has_victims: bool = False  # as the pools have been told
    counted: tuple[int, int] = (0, 0)  # slots and blocks in use, as the pools have been told
    flights: "list[Flight]" = field(default_factory=list)  # its padded batches, in the order that they run in

    def default_precision(self, model: str) -> Precision:
        """Of several, the one it named first."""
        return next(loaded.precision for loaded in self.models if loaded.name == model)

    def padding_of(self, model: str) -> Padding | None:
        """How it pads the model's batches; None where it does not."""
        return next((loaded.padding for loaded in self.models if loaded.name == model), None)

    def context_of(self, model: str) -> int:
        """The longest prompt plus answer, in tokens; 0 where the model is not loaded."""
        return max((loaded.context_tokens for loaded in self.models if loaded.name == model), default=0)


class OpenExecutors:
    """Executors with a free slot, the least loaded first; a full one costs nothing to pass over."""

    def __init__(self) -> None:
        self._members: dict[str, Executor] = {}
        self._heap: list[tuple[float, int, int, Executor]] = []  # load, number, version; old versions are passed over
        self._moved: dict[Executor, float] = {}  # to be put into the heap once somebody asks for the order

    def __contains__(self, executor_id: str) -> bool:
        return executor_id in self._members

    def put(self, executor: Executor, load: float) -> None:
        """Open at this load, as of its present version."""
        self._members[executor.executor_id] = executor
        self._moved[executor] = load

    def discard(self, executor: Executor) -> None:
        if self._members.pop(executor.executor_id, None) is not None:
            self._moved.pop(executor, None)

    def by_load(self) -> Iterator[Executor]:
        """None may be changed before the iterator has been closed."""
        for executor, load in self._moved.items():
            heapq.heappush(self._heap, (load, executor.number, executor.version, executor))
        self._moved.clear()
        if len(self._heap) > 4 * len(self._members) + 64:
            self._heap = [entry for entry in self._heap if self._current(entry)]
            heapq.heapify(self._heap)
        taken = []
        try:
            while self._heap:
                entry = heapq.heappop(self._heap)
                if self._current(entry):
                    taken.append(entry)
                    yield entry[3]
        finally:
            for entry in taken:
                heapq.heappush(self._heap, entry)

    def _current(self, entry: tuple[float, int, int, Executor]) -> bool:
        executor = entry[3]
        return entry[2] == executor.version and self._members.get(executor.executor_id) is executor


@dataclass(slots=True, eq=False)
class Pool:
    """The executors that have one model in one precision (or, for ANY, in whichever).

    `shapes` counts the members by capacity and context, so that a request too large for all is known by few looks.
    `victims` are those that run somebody who could be displaced. `ragged` take
    requests one by one. The counts are sums over the members.
    """

    members: dict[str, Executor] = field(default_factory=dict)
    open: OpenExecutors = field(default_factory=OpenExecutors)
    victims: dict[str, Executor] = field(default_factory=dict)
    ragged: dict[str, Executor] = field(default_factory=dict)
    shapes: Counter[tuple[Shape, int]] = field(default_factory=Counter)
    num_slots: int = 0
    num_blocks: int = 0
    slots_in_use: int = 0
    blocks_in_use: int = 0

    @property
    def padded(self) -> bool:
        """Whether batches are formed by length: one member that takes requests one by one makes that needless."""
        return not self.ragged

    @property
    def load(self) -> float:
        """The larger share in use, of slots or of blocks."""
        slots, blocks = self.slots_in_use / self.num_slots, self.blocks_in_use / self.num_blocks
        return slots if slots > blocks else blocks


class Registry:
    """All members; draining ones are in no pool."""

    def __init__(self) -> None:
        self.executors: dict[str, Executor] = {}
        self._pools: dict[str, dict[Precision, Pool]] = defaultdict(lambda: defaultdict(Pool))
        self._numbers = itertools.count(1)

    def enlist(self, event: ExecutorEnlisted, steps: StepModel) -> Executor:
        """Takes in an executor whose id is not a member's."""
        ledger = Ledger(Shape(event.num_slots, event.num_blocks, event.block_tokens))
        executor = Executor(event.executor_id, event.address, event.models, ledger, steps, next(self._numbers))
        executor.draining = event.draining
        self.executors[executor.executor_id] = executor
        self._join(executor)
        return executor

    def remove(self, executor: Executor) -> None:
        self._leave(executor)
        del self.executors[executor.executor_id]

    def set_draining(self, executor: Executor, draining: bool) -> None:
        self._leave(executor)
        executor.draining = draining
        self._join(executor)

    def update(self, executor: Executor) -> None:
        """To be called when the executor's ledger has changed."""
        ledger = executor.ledger
        executor.version += 1
        slots, blocks = ledger.num_slots, ledger.num_blocks
        more_slots, more_blocks = slots - executor.counted[0], blocks - executor.counted[1]
        executor.counted = slots, blocks
        is_open, load = slots < ledger.shape.num_slots, ledger.load
        for pool in executor.pools:
            pool.slots_in_use += more_slots
            pool.blocks_in_use += more_blocks
            if is_open:
                pool.open.put(executor, load)
            else:
                pool.open.discard(executor)
        self.update_victims(executor)

    def update_victims(self, executor: Executor) -> None:
        """To be called when nothing of the ledger has changed but who runs."""
        ledger = executor.ledger
        has_victims = ledger.has_displaceable(QosClass.BATCH) or ledger.has_displaceable(QosClass.NORMAL)
        if has_victims is executor.has_victims:
            return
        executor.has_victims = has_victims
        for pool in executor.pools:
            if has_victims:
                pool.victims[executor.executor_id] = executor
            else:
                pool.victims.pop(executor.executor_id, None)

    def pool(self, model: str, wish: Precision) -> tuple[Precision, Pool] | None:
        """The best precision that serves the wish now, and who has it; None if nobody."""
        pools = self._pools.get(model)
        if pools:
            for precision in SERVED_BY[wish]:
                if precision in pools:
                    return precision, pools[precision]
        return None

    def precisions(self, model: str) -> list[Precision]:
        """What the model is loaded in now."""
        return sorted(self._pools.get(model, {}).keys() - {Precision.ANY})

    def choices(self) -> Choices:
        return {
            model: {each: frozenset(pools[each].shapes) for each in sorted(pools.keys() - {Precision.ANY})}
            for model, pools in self._pools.items()
            if len(pools) > 2  # ANY is one of them
        }

    def _join(self, executor: Executor) -> None:
        if executor.draining:
            return
        shape = executor.ledger.shape
        for loaded in executor.models:
            for precision in {loaded.precision, Precision.ANY}:
                pool = self._pools[loaded.name][precision]
                pool.shapes[shape, loaded.context_tokens] += 1
                if executor.executor_id not in pool.members:
                    pool.members[executor.executor_id] = executor
                    if executor.padding_of(loaded.name) is None:
                        pool.ragged[executor.executor_id] = executor
                    pool.num_slots += shape.num_slots
                    pool.num_blocks += shape.num_blocks
                    executor.pools.append(pool)
        executor.counted = 0, 0
        executor.has_victims = False
        self.update(executor)

    def _leave(self, executor: Executor) -> None:
        if executor.draining:
            return
        shape = executor.ledger.shape
        for pool in executor.pools:
            del pool.members[executor.executor_id]
            pool.ragged.pop(executor.executor_id, None)
            pool.open.discard(executor)
            pool.victims.pop(executor.executor_id, None)
            pool.num_slots -= shape.num_slots
            pool.num_blocks -= shape.num_blocks
            pool.slots_in_use -= executor.counted[0]
            pool.blocks_in_use -= executor.counted[1]
        executor.pools.clear()
        for loaded in executor.models:
            pools = self._pools[loaded.name]
            for precision in {loaded.precision, Precision.ANY}:
                if precision in pools:
                    pool = pools[precision]
                    pool.shapes[shape, loaded.context_tokens] -= 1
                    if not pool.shapes[shape, loaded.context_tokens]:
                        del pool.shapes[shape, loaded.context_tokens]
                    if not pool.members:
                        del pools[precision]
            if not pools:
                del self._pools[loaded.name]
