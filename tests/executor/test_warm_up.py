"""Warming up: the shapes of real steps, within what engine and pool have, and everything back."""

import pytest

from headrace.core.errors import EngineFault
from headrace.core.model import ModelInfo
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.memory.engine_memory import EngineMemory
from headrace.executor.warm_up import warm_up


class Watched(ReferenceEngine):
    """Keeps its plans."""

    def __init__(self, num_blocks=64, context_tokens=512):
        super().__init__(ModelInfo("reference", "decoder", "", context_tokens, 512, (256,)), num_blocks)
        self.plans = []

    def forward(self, plan):
        self.plans.append(plan)
        return super().forward(plan)


def warmed(engine, num_slots, step_tokens):
    pool = BlockPool(engine.spec.num_blocks, engine.spec.block_tokens, memory=EngineMemory(engine))
    warm_up(engine, pool, num_slots, step_tokens)
    pool.check()
    assert (pool.num_in_use, pool.num_reserved) == (0, 0)
    return [(len(plan.past_lens), len(plan.token_ids)) for plan in engine.plans]


def test_a_whole_prefill_and_every_slot_are_warmed():
    engine = Watched()
    least = engine.spec.min_rows
    assert warmed(engine, 8, 100) == [(least, 100 + least - 1), (8, 8)]


@pytest.mark.parametrize(("num_blocks", "context_tokens"), [(4, 4096), (64, 32), (2, 4096)])
def test_it_keeps_within_context_and_blocks(num_blocks, context_tokens):
    engine = Watched(num_blocks, context_tokens)
    for rows, tokens in warmed(engine, 1000, 100_000):
        assert rows <= num_blocks
        assert tokens - (rows - 1) <= min(context_tokens, num_blocks * engine.spec.block_tokens)


def test_a_failing_engine_leaves_nothing_taken():
    class Failing(Watched):
        def forward(self, plan):
            raise EngineFault("no")

    engine = Failing()
    pool = BlockPool(engine.spec.num_blocks, engine.spec.block_tokens, memory=EngineMemory(engine))
    with pytest.raises(EngineFault):
        warm_up(engine, pool, 8, 100)
    assert (pool.num_in_use, pool.num_reserved) == (0, 0)
