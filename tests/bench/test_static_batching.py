"""Static batching: a batch takes nobody new until its longest answer is through, and gives as many tokens as asked."""

import asyncio
import itertools

from headrace.benchmarks.scenarios import static
from headrace.benchmarks.static_batching import StaticBatcher
from headrace.core.model import ModelInfo
from headrace.executor.engines.protocol import StepPlan
from headrace.executor.engines.reference import ReferenceEngine

INFO = ModelInfo("reference", "decoder", "", 512, 512, (256,))


class Counting:
    """The reference engine, noting how many rows each step has."""

    def __init__(self) -> None:
        self._engine = ReferenceEngine(INFO, 256)
        self.spec = self._engine.spec
        self.rows: list[int] = []

    def forward(self, plan: StepPlan) -> object:
        self.rows.append(len(plan.past_lens))
        return self._engine.forward(plan)


async def test_a_batch_keeps_its_shape_to_its_longest_answer() -> None:
    engine = Counting()
    batcher = StaticBatcher(engine, 3, 64)
    serving = asyncio.create_task(batcher.run())

    async def ask(max_tokens: int) -> int:
        return sum([each async for each in batcher.stream([65, 66, 67], max_tokens)])

    answers = await asyncio.gather(*(ask(tokens) for tokens in (2, 9, 4, 5)))
    serving.cancel()
    assert answers == [2, 9, 4, 5]
    assert len(engine.rows) == 9 + 5  # the fourth waits for the longest of the first three
    assert engine.rows[:9] == [3] * 9


def test_lengths_follow_the_fitted_figures() -> None:
    drawn = list(itertools.islice(static.lengths(None, 1), 4000))
    prompts, answers = (sorted(each) for each in zip(*drawn, strict=True))
    assert abs(prompts[2000] * static.SHRINK - 1020) < 100
    assert abs(answers[2000] * static.SHRINK - 129) < 20
    assert 2 <= prompts[0] <= prompts[-1] <= static.MOST[0]
    assert 1 <= answers[0] <= answers[-1] <= static.MOST[1]
