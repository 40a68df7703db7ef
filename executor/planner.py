"""Who is in the next step, with how many tokens: decodes, tokens to be replayed, prefill chunks. Pure."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from headrace.core.request import FinishReason
from headrace.executor.engines.protocol import Int64
from headrace.executor.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """`num_tokens` of the sequence's tokens from `past` on go into the step; `last`: its next token is then chosen.

    A row of one token that is only guessed brings it as `guess`, and counts for nothing unless it comes true.
    """

    sequence: Sequence
    past: int
    num_tokens: int
    last: bool
    guess: int | None = None

    @property
    def token_ids(self) -> Int64:
        """[num_tokens]."""
        if self.guess is not None:
            return np.array([self.guess], np.int64)
        return self.sequence.token_ids[self.past : self.past + self.num_tokens]

    @property
    def counts(self) -> bool:
        """Whether the rows of its sequence before it, once read, have led to it."""
        sequence = self.sequence
        return self.guess is None or (
            sequence.finish is FinishReason.NONE
            and sequence.past == self.past
            and int(sequence.token_ids[self.past]) == self.guess
        )


def plan_rows(
    sequences: Many[Sequence],
    step_tokens: int,
    min_chunk_tokens: int,
    *,
    exact: bool = True,
    chunk_multiple_tokens: int = 1,
) -> list[Row]:
    """Rows of one step within the token budget.

    Every decode has its row, whatever the budget: an answer once begun keeps its pace. What is left goes to prefills
    and to answers whose KV was dropped, the lower priority number and the earlier arrival first. The known tokens of
    such an answer are rows of their own over the same blocks, as the decodes were that made them. No chunk and no rest
    of a prompt is shorter than `min_chunk_tokens`, since the engine's bits change there; the exception is a prompt that
    is itself shorter. Chunks end at multiples of `chunk_multiple_tokens` or with what is known, if need be a little
    over the budget. Where nothing has to be `exact`, known answer tokens are chunks like a prompt's, and cheaper.
    """
    rows: list[Row] = []
    waiting: list[Sequence] = []
    for sequence in sequences:
        if sequence.num_pending == 1 and not sequence.prefilling:
            rows.append(Row(sequence, sequence.past, 1, True))
        else:
            waiting.append(sequence)
    budget = step_tokens - len(rows)
    waiting.sort(key=lambda sequence: (sequence.job.priority, sequence.arrival))
    for sequence in waiting:
        past, pending = sequence.past, sequence.num_pending
        if exact and not sequence.prefilling:
            size = min(pending, budget if rows else max(budget, 1))
            rows += [Row(sequence, past + i, 1, i + 1 == pending) for i in range(size)]
        else:
            up_to_prompt = exact or (sequence.prefilling and sequence.replayed)  # further answers begin there
            prompt = sequence.num_prompt_pending if up_to_prompt else pending
            if chunk_multiple_tokens > 1:
                size = aligned_chunk_tokens(past, prompt, budget, min_chunk_tokens, chunk_multiple_tokens)
            else:
                size = chunk_tokens(prompt, budget, min_chunk_tokens)
            if size <= 0 and not rows:
                size = min(prompt, min_chunk_tokens)  # a budget below the bound must not stop the loop
                size += prompt - size if 0 < prompt - size < min_chunk_tokens else 0
            if size > 0:
                rows.append(Row(sequence, past, size, size == pending))
        if size <= 0:
            break
        budget -= size
    return rows


def chunk_tokens(pending: int, budget: int, min_chunk_tokens: int) -> int:
    """The largest chunk within the budget that leaves no rest shorter than the bound; 0 if there is none."""
    if pending <= budget:
        return pending
    size = min(budget, pending - min_chunk_tokens)
    return size if size >= min_chunk_tokens else 0


def aligned_chunk_tokens(past: int, pending: int, budget: int, min_chunk_tokens: int, multiple: int) -> int:
    """The chunk that ends at the first multiple from the budget on, or takes all where the rest would be too short; 0
    if there is no budget."""
    if budget <= 0:
        return 0
    size = -(-(past + budget) // multiple) * multiple - past
    return pending if pending - size < min_chunk_tokens else size
