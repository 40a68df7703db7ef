"""The bare step loop: the engine alone, fed one prompt, with nothing around it. What overhead is measured against."""

import time
from collections.abc import Sequence

import numpy as np

from headrace.executor.engines.protocol import Engine, StepPlan


class BareLoop:
    """Prefills prompts in one step each, as the only work of the engine; its blocks are used again for the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._spec = engine.spec

    def first_token_s(self, prompt: Sequence[int]) -> float:
        """Seconds from the prompt's token ids to its first token."""
        begun = time.perf_counter()
        output = self._engine.forward(self.plan(prompt))
        int(output.best[0][0])
        return time.perf_counter() - begun

    def plan(self, prompt: Sequence[int]) -> StepPlan:
        """One step: the prompt's row, and one-token dummy rows up to the fewest rows that the engine wants."""
        num_dummies = self._spec.min_rows - 1
        num_blocks = -(-len(prompt) // self._spec.block_tokens)
        return StepPlan(
            token_ids=np.array([*prompt, *[0] * num_dummies], np.int64),
            past_lens=np.zeros(1 + num_dummies, np.int32),
            subsequence_begins=np.cumsum([0, len(prompt), *[1] * num_dummies]).astype(np.int32),
            block_indices=np.arange(num_blocks + num_dummies, dtype=np.int32),
            block_indices_begins=np.cumsum([0, num_blocks, *[1] * num_dummies]).astype(np.int32),
            wanted_tokens=np.array([len(prompt) - 1], np.int64),
        )
