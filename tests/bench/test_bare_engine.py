"""The bare loop's one step, against the reference engine."""

import numpy as np

from headrace.benchmarks.bare_engine import BareLoop
from headrace.core.model import ModelInfo
from headrace.executor.engines.reference import ReferenceEngine
from headrace.models.reference import CONTEXT_TOKENS, EOS_TOKEN_ID, VOCAB_SIZE


def test_a_prompt_takes_one_step_with_enough_blocks_and_rows() -> None:
    engine = ReferenceEngine(ModelInfo("reference", "decoder", "", CONTEXT_TOKENS, VOCAB_SIZE, (EOS_TOKEN_ID,)), 64)
    spec, prompt = engine.spec, list(range(1, 71))
    plan = BareLoop(engine).plan(prompt)
    assert plan.token_ids[: len(prompt)].tolist() == prompt
    assert len(plan.past_lens) == max(spec.min_rows, 1)
    assert np.diff(plan.block_indices_begins)[0] * spec.block_tokens >= len(prompt)
    assert len(set(plan.block_indices.tolist())) == len(plan.block_indices), "no two rows share a block"
    assert plan.wanted_tokens.tolist() == [len(prompt) - 1]
    assert BareLoop(engine).first_token_s(prompt) > 0
