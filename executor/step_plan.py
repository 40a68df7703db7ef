"""Rows of a step as the engine's arrays."""

import itertools
from collections.abc import Sequence as Many

import numpy as np

from headrace.executor.engines.protocol import EngineSpec, StepPlan
from headrace.executor.planner import Row


def to_step_plan(rows: Many[Row], spec: EngineSpec, dummy_blocks: Many[int], num_rows: int = 0) -> StepPlan:
    """The rows, and dummies over blocks of their own where the engine wants more rows than there are, or where there
    are to be `num_rows`: the shape stays that of a step with so many, wanted logits and all."""
    num_stand_ins = max(0, num_rows - len(rows))
    num_dummies = max(num_stand_ins, spec.min_rows - len(rows))
    lengths = [row.num_tokens for row in rows] + [1] * num_dummies
    tokens = [row.token_ids for row in rows]
    tables = [row.sequence.table.blocks[: -(-(row.past + row.num_tokens) // spec.block_tokens)] for row in rows]
    if num_dummies:
        tokens.append(np.ones(num_dummies, np.int64))
        blocks = itertools.islice(itertools.cycle(dummy_blocks), num_dummies)  # whose bits nobody reads
        tables += [np.array([block], np.int32) for block in blocks]
    begins = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=begins[1:])
    block_begins = np.zeros(len(tables) + 1, np.int32)
    np.cumsum([len(table) for table in tables], out=block_begins[1:])
    last = np.array([row.last for row in rows] + [True] * num_stand_ins, bool)
    wanted = begins[1 : len(last) + 1][last] - 1
    if not len(wanted):
        wanted = begins[1:2] - 1  # engines want at least one; nobody reads it
    return StepPlan(
        token_ids=np.concatenate(tokens),
        past_lens=np.array([row.past for row in rows] + [0] * num_dummies, np.int32),
        subsequence_begins=begins,
        block_indices=np.concatenate(tables),
        block_indices_begins=block_begins,
        wanted_tokens=wanted.astype(np.int64),
    )
