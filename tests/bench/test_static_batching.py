"""Static batching: a batch takes nobody new until its longest answer is through, and gives as many tokens as asked."""

import asyncio
import itertools

import numpy as np

from headrace.benchmarks.conversation_lengths import MOST, SHRINK
from headrace.benchmarks.scenarios import static
from headrace.benchmarks.static_batching import StaticBatcher
from headrace.core.model import ModelInfo
from headrace.executor.engines.protocol import StepPlan
from headrace.executor.engines.reference import ReferenceEngine

INFO = ModelInfo("reference", "decoder", "", 512, 512, (256,))


class Counting:
    """The reference engine, noting how many new tokens each row of each step has."""

    def __init__(self) -> None:
        self._engine = ReferenceEngine(INFO, 256)
        self.spec = self._engine.spec
        self.steps: list[list[int]] = []

    def forward(self, plan: StepPlan) -> object:
        self.steps.append(np.diff(plan.subsequence_begins).tolist())
        return self._engine.forward(plan)


async def ended(engine: Counting, *, padded: bool) -> list[tuple[int, int]]:
    """Of four answers, the tokens and after which step the last of them came."""
    batcher = StaticBatcher(engine, 3, 64, padded=padded)
    serving = asyncio.create_task(batcher.run())

    async def ask(prompt_tokens: int, max_tokens: int) -> tuple[int, int]:
        tokens = sum([each async for each in batcher.stream([65] * prompt_tokens, max_tokens)])
        return tokens, len(engine.steps)

    answers = await asyncio.gather(*(ask(*each) for each in ((3, 2), (7, 9), (5, 4), (2, 5))))
    serving.cancel()
    return answers


async def test_a_ragged_batch_keeps_its_rows_to_its_longest_answer() -> None:
    engine = Counting()
    answers = await ended(engine, padded=False)
    assert [tokens for tokens, _ in answers] == [2, 9, 4, 5]
    assert engine.steps[0] == [3, 7, 5]
    assert engine.steps[1:9] == [[1, 1, 1]] * 8
    assert len(engine.steps) == 9 + 5  # the fourth waits for the longest of the first three
    assert answers[0][1] < 9  # tokens stream


async def test_a_padded_batch_is_as_long_as_its_longest_prompt_and_ends_as_one() -> None:
    engine = Counting()
    answers = await ended(engine, padded=True)
    assert [tokens for tokens, _ in answers] == [2, 9, 4, 5]
    assert engine.steps[0] == [7, 7, 7]
    assert engine.steps[1:9] == [[1, 1, 1]] * 8
    assert [after >= 9 for _, after in answers] == [True] * 4


def test_lengths_follow_the_fitted_figures() -> None:
    drawn = list(itertools.islice(static.lengths(None, 1), 4000))
    prompts, answers = (sorted(each) for each in zip(*drawn, strict=True))
    assert abs(prompts[2000] * SHRINK - 1020) < 100
    assert abs(answers[2000] * SHRINK - 129) < 20
    assert 2 <= prompts[0] <= prompts[-1] <= MOST[0]
    assert 1 <= answers[0] <= answers[-1] <= MOST[1]
