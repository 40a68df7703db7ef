"""Static batching over our own engine: what continuous batching is measured against.

A batch takes those that wait, at most so many, and none that comes later; its shape stays until its longest answer is
through. Padded, it is what servers of rectangular tensors do: every prompt as long as the batch's longest, and answers
handed out when the batch has ended. Ragged, prompts are as long as they are and tokens are handed out as they are made:
static batching with a ragged engine, which leaves only the waiting for the longest answer.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.executor.engines.protocol import Engine, StepPlan


@dataclass(slots=True, eq=False)
class _Member:
    prompt: Sequence[int]
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    arrived: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)


class StaticBatcher:
    """`batch_size` requests at a time. `run` serves until cancelled; `stream` is what an open loop drives."""

    def __init__(self, engine: Engine, batch_size: int, context_tokens: int, *, padded: bool) -> None:
        self._engine = engine
        self._padded = padded
        self._size = batch_size
        self._blocks_each = -(-context_tokens // engine.spec.block_tokens)
        self._waiting: deque[_Member] = deque()
        self._wake = asyncio.Event()

    async def stream(self, prompt: Sequence[int], max_tokens: int, qos: str = "normal") -> AsyncIterator[int]:
        """One for each token; the class counts for nothing."""
        member = _Member(prompt, max_tokens)
        self._waiting.append(member)
        self._wake.set()
        for _ in range(max_tokens):
            yield await member.arrived.get()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            batch = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            if not self._waiting:
                self._wake.clear()
            if batch:
                await self._serve(batch)

    async def _serve(self, batch: list[_Member]) -> None:
        """All prompts in one step, then a step a token for every row until the longest answer is through."""
        longest = max(member.max_tokens for member in batch)
        if self._padded:
            prompt_tokens = max(len(member.prompt) for member in batch)
            for member in batch:
                member.prompt = [0] * (prompt_tokens - len(member.prompt)) + list(member.prompt)
        for number in range(longest):
            output = await asyncio.to_thread(self._engine.forward, self._plan(batch, decode=number > 0))
            for member, token_id in zip(batch, output.best[0].tolist(), strict=False):
                member.tokens.append(token_id)
                if number < member.max_tokens and not self._padded:
                    member.arrived.put_nowait(1)
        if self._padded:
            for member in batch:
                for _ in range(member.max_tokens):
                    member.arrived.put_nowait(1)

    def _plan(self, batch: list[_Member], *, decode: bool) -> StepPlan:
        block_tokens, rows = self._engine.spec.block_tokens, max(len(batch), self._engine.spec.min_rows)
        new = [member.tokens[-1:] if decode else member.prompt for member in batch]
        past = [len(member.prompt) + len(member.tokens) - 1 if decode else 0 for member in batch]
        new += [[0]] * (rows - len(batch))  # the engine wants so many
        past += [0] * (rows - len(batch))
        lengths = np.array([len(each) for each in new])
        num_blocks = [-(-(before + each) // block_tokens) for before, each in zip(past, lengths.tolist(), strict=True)]
        begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return StepPlan(
            token_ids=np.concatenate([np.asarray(each, np.int64) for each in new]),
            past_lens=np.array(past, np.int32),
            subsequence_begins=begins,
            block_indices=np.concatenate(
                [row * self._blocks_each + np.arange(num, dtype=np.int32) for row, num in enumerate(num_blocks)]
            ).astype(np.int32),
            block_indices_begins=np.concatenate([[0], np.cumsum(num_blocks)]).astype(np.int32),
            wanted_tokens=begins[1 : len(batch) + 1].astype(np.int64) - 1,
        )
