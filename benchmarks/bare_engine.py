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
        """Seconds from the prompt's token ids to its first token.

        A decode step follows, outside the time, as it does in the suite: engines prepare anew where a step's shape
        differs from the one before, so prefills one after the other would be cheaper here than any loop can have them.
        """
        begun = time.perf_counter()
        output = self._engine.forward(self.plan(prompt))
        token_id = int(output.best[0][0])
        first_token_s = time.perf_counter() - begun
        self._engine.forward(self.plan([token_id], past_tokens=len(prompt)))
        return first_token_s

    def plan(self, tokens: Sequence[int], past_tokens: int = 0) -> StepPlan:
        """One step: the tokens' row, and one-token dummy rows up to the fewest rows that the engine wants."""
        num_dummies = self._spec.min_rows - 1
        num_blocks = -(-(past_tokens + len(tokens)) // self._spec.block_tokens)
        dummy_blocks = self._spec.num_blocks - 1 - np.arange(num_dummies)  # apart from the row's, which grow
        return StepPlan(
            token_ids=np.array([*tokens, *[0] * num_dummies], np.int64),
            past_lens=np.array([past_tokens, *[0] * num_dummies], np.int32),
            subsequence_begins=np.cumsum([0, len(tokens), *[1] * num_dummies]).astype(np.int32),
            block_indices=np.concatenate([np.arange(num_blocks), dummy_blocks]).astype(np.int32),
            block_indices_begins=np.cumsum([0, num_blocks, *[1] * num_dummies]).astype(np.int32),
            wanted_tokens=np.array([len(tokens) - 1], np.int64),
        )
