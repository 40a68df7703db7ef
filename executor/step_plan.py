"""Rows of a step as the engine's arrays."""

import itertools
from collections.abc import Sequence as Many

import numpy as np

from headrace.executor.engines.protocol import EngineSpec, Int32, StepPlan
from headrace.executor.planner import Row
from headrace.executor.staging import StagingRows


def to_step_plan(
    rows: Many[Row],
    spec: EngineSpec,
    dummy_blocks: Many[int],
    num_rows: int,
    staging: StagingRows,
    predicted_s: float | None = None,
) -> StepPlan:
    """The rows, and dummies over blocks of their own where the engine wants more rows than there are, or where there
    are to be `num_rows`: the shape stays that of a step with so many, wanted logits and all. The arrays lie in
    `staging`."""
    num_stand_ins = max(0, num_rows - len(rows))
    num_dummies = max(num_stand_ins, spec.min_rows - len(rows))
    lengths = [row.num_tokens for row in rows] + [1] * num_dummies
    tokens = [row.token_ids for row in rows]
    tables = [row.sequence.table.blocks[: -(-(row.past + row.num_tokens) // spec.block_tokens)] for row in rows]
    if num_dummies:
        tokens.append(np.ones(num_dummies, np.int64))
        blocks = itertools.islice(itertools.cycle(dummy_blocks), num_dummies)  # whose bits nobody reads
        tables += [np.array([block], np.int32) for block in blocks]
    num_tokens, num_blocks = sum(lengths), sum(map(len, tables))
    begins = _sums(lengths, staging.subsequence_begins)
    last = np.array([row.last for row in rows] + [True] * num_stand_ins, bool)
    ends = begins[1 : len(last) + 1][last]
    if not len(ends):
        ends = begins[1:2]  # engines want at least one; nobody reads it
    past_lens = staging.past_lens[: len(lengths)]
    past_lens[:] = [row.past for row in rows] + [0] * num_dummies
    return StepPlan(
        token_ids=np.concatenate(tokens, out=staging.token_ids[:num_tokens]),
        past_lens=past_lens,
        subsequence_begins=begins,
        block_indices=np.concatenate(tables, out=staging.block_indices[:num_blocks]),
        block_indices_begins=_sums([len(table) for table in tables], staging.block_indices_begins),
        wanted_tokens=np.subtract(ends, 1, out=staging.wanted_tokens[: len(ends)]),
        predicted_s=predicted_s,
    )


def _sums(lengths: Many[int], out: Int32) -> Int32:
    """[len + 1]: where each begins, and where the last ends."""
    begins = out[: len(lengths) + 1]
    begins[0] = 0
    np.cumsum(lengths, out=begins[1:])
    return begins
