"""A freshly loaded engine's first steps, taken before anybody waits for them: pages of the model come in, kernels for
the shapes of steps are made. The first step after a start may take seconds, and would also mislead the step model."""

import numpy as np

from headrace.executor.engines.protocol import Engine, StepPlan
from headrace.executor.kv.blocks import BlockPool


def warm_up(engine: Engine, pool: BlockPool, num_slots: int, step_tokens: int) -> None:
    """A prefill of `step_tokens`, as far as the context and the pool go, and a step of `num_slots` decodes.

    The pool has its blocks back afterwards. Raises what the engine raises, PoolExhausted where there is no memory.
    """
    spec = engine.spec
    chunk_tokens = min(step_tokens, spec.context_tokens, (pool.num_available - spec.min_rows) * spec.block_tokens)
    chunk_tokens -= chunk_tokens % spec.chunk_multiple_tokens
    num_rows = min(num_slots, pool.num_available)
    with pool.reserve(max(num_rows, pool.blocks_for(chunk_tokens) + spec.min_rows - 1)) as reserved:
        blocks: list[int] = []
        try:
            while reserved.num_left:
                blocks.append(reserved.take())
            if chunk_tokens >= spec.min_chunk_tokens:
                engine.forward(_plan([chunk_tokens, *[1] * (spec.min_rows - 1)], blocks, spec.block_tokens))
            if num_rows >= spec.min_rows:
                engine.forward(_plan([1] * num_rows, blocks, spec.block_tokens))
        finally:
            for block in blocks:
                pool.drop(block)


def _plan(row_tokens: list[int], blocks: list[int], block_tokens: int) -> StepPlan:
    """Rows of so many new tokens of id 0, nothing before them, each over blocks of its own."""
    ends = np.cumsum(row_tokens)
    num_blocks = [-(-tokens // block_tokens) for tokens in row_tokens]
    block_ends = np.cumsum(num_blocks)
    return StepPlan(
        token_ids=np.zeros(ends[-1], np.int64),
        past_lens=np.zeros(len(row_tokens), np.int32),
        subsequence_begins=np.array([0, *ends], np.int32),
        block_indices=np.array(blocks[: block_ends[-1]], np.int32),
        block_indices_begins=np.array([0, *block_ends], np.int32),
        wanted_tokens=(ends - 1).astype(np.int64),
    )
