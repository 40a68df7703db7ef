"""Executors that take work, found by model and precision."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from headrace.core.request import Precision
from headrace.scheduler.policy.events import ExecutorEnlisted, LoadedModel
from headrace.scheduler.policy.ledger import Ledger, Shape

SERVED_BY: dict[Precision, tuple[Precision, ...]] = {
    Precision.ANY: (Precision.ANY,),
    Precision.FP32: (Precision.FP32,),
    Precision.BF16: (Precision.BF16, Precision.FP32),  # neither half precision holds all that the other does
    Precision.FP16: (Precision.FP16, Precision.FP32),
    Precision.INT8: (Precision.INT8, Precision.FP16, Precision.BF16, Precision.FP32),
}
"""Which precisions serve a wish, best first: itself, else the nearest that holds more."""


@dataclass(slots=True, eq=False)
class Executor:
    """A member: what it has loaded, and what of it is promised."""

    executor_id: str
    address: str
    models: tuple[LoadedModel, ...]
    ledger: Ledger
    draining: bool = False

    def default_precision(self, model: str) -> Precision:
        """Of several, the one it named first."""
        return next(loaded.precision for loaded in self.models if loaded.name == model)

    def context_of(self, model: str) -> int:
        """The longest prompt plus answer, in tokens; 0 where the model is not loaded."""
        return max((loaded.context_tokens for loaded in self.models if loaded.name == model), default=0)


@dataclass(slots=True, eq=False)
class Pool:
    """The executors that have one model in one precision (or, for ANY, in whichever).

    `open` holds those with a free slot, so that full ones cost nothing to pass over. `shapes` counts the members by
    capacity and context, so that a request too large for all is known by few looks.
    """

    members: dict[str, Executor] = field(default_factory=dict)
    open: dict[str, Executor] = field(default_factory=dict)
    shapes: Counter[tuple[Shape, int]] = field(default_factory=Counter)


class Registry:
    """All members; draining ones are in no pool."""

    def __init__(self) -> None:
        self.executors: dict[str, Executor] = {}
        self._pools: dict[str, dict[Precision, Pool]] = defaultdict(lambda: defaultdict(Pool))

    def enlist(self, event: ExecutorEnlisted) -> Executor:
        """Takes in an executor whose id is not a member's."""
        ledger = Ledger(Shape(event.num_slots, event.num_blocks, event.block_tokens))
        executor = Executor(event.executor_id, event.address, event.models, ledger)
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
        is_open = executor.ledger.num_slots < executor.ledger.shape.num_slots
        for pool in self._pools_of(executor):
            if is_open:
                pool.open[executor.executor_id] = executor
            else:
                pool.open.pop(executor.executor_id, None)

    def pool(self, model: str, wish: Precision) -> tuple[Precision, Pool] | None:
        """The best precision that serves the wish now, and who has it; None if nobody."""
        pools = self._pools.get(model, {})
        return next(((precision, pools[precision]) for precision in SERVED_BY[wish] if precision in pools), None)

    def precisions(self, model: str) -> list[Precision]:
        """What the model is loaded in now."""
        return sorted(self._pools.get(model, {}).keys() - {Precision.ANY})

    def _join(self, executor: Executor) -> None:
        if executor.draining:
            return
        for loaded in executor.models:
            for precision in {loaded.precision, Precision.ANY}:
                pool = self._pools[loaded.name][precision]
                pool.members[executor.executor_id] = executor
                pool.shapes[executor.ledger.shape, loaded.context_tokens] += 1
        self.update(executor)

    def _leave(self, executor: Executor) -> None:
        if executor.draining:
            return
        for loaded in executor.models:
            for precision in {loaded.precision, Precision.ANY}:
                pools = self._pools[loaded.name]
                pool = pools[precision]
                pool.members.pop(executor.executor_id, None)
                pool.open.pop(executor.executor_id, None)
                pool.shapes[executor.ledger.shape, loaded.context_tokens] -= 1
                if not pool.shapes[executor.ledger.shape, loaded.context_tokens]:
                    del pool.shapes[executor.ledger.shape, loaded.context_tokens]
                if not pool.shapes:
                    del pools[precision]
            if not self._pools[loaded.name]:
                del self._pools[loaded.name]

    def _pools_of(self, executor: Executor) -> list[Pool]:
        if executor.draining:
            return []
        return [self._pools[loaded.name][p] for loaded in executor.models for p in (loaded.precision, Precision.ANY)]
