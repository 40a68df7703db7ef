"""Who is in the next step, with how many tokens: decodes, tokens to be replayed, prefill chunks. Pure."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from headrace.executor.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """`num_tokens` of the sequence's tokens from `past` on go into the step; `last`: its next token is then chosen."""

    sequence: Sequence
    past: int
    num_tokens: int
    last: bool


def plan_rows(sequences: Many[Sequence], step_tokens: int, min_chunk_tokens: int) -> list[Row]:
    """Rows of one step within the token budget.

    Every decode has its row, whatever the budget: an answer once begun keeps its pace. An answer whose KV was dropped
    has its known tokens replayed, each a row of its own over the same blocks, as the decodes were that made them. What
    is left of the budget goes to prefills, the lower priority number and the earlier arrival first. No chunk and no
    rest of a prompt is shorter than `min_chunk_tokens`, since the engine's bits change there; the exception is a prompt
    that is itself shorter.
    """
    decodes = [sequence for sequence in sequences if not sequence.prefilling]
    budget = step_tokens - len(decodes)
    rows: list[Row] = []
    for sequence in decodes:
        pending = sequence.num_pending
        if pending == 1:
            rows.append(Row(sequence, sequence.past, 1, True))
            continue
        more = min(pending - 1, max(budget, 0))
        budget -= more
        rows += [Row(sequence, sequence.past + i, 1, i + 1 == pending) for i in range(1 + more)]
    waiting = [sequence for sequence in sequences if sequence.prefilling]
    waiting.sort(key=lambda sequence: (sequence.job.priority, sequence.arrival))
    for sequence in waiting:
        pending = sequence.num_prompt_pending
        size = chunk_tokens(pending, budget, min_chunk_tokens)
        if size == 0 and not rows:
            size = min(pending, min_chunk_tokens)  # a budget below the bound must not stop the loop
            size += pending - size if 0 < pending - size < min_chunk_tokens else 0
        if size == 0:
            break
        rows.append(Row(sequence, sequence.past, size, size == sequence.num_pending))
        budget -= size
    return rows


def chunk_tokens(pending: int, budget: int, min_chunk_tokens: int) -> int:
    """The largest chunk within the budget that leaves no rest shorter than the bound; 0 if there is none."""
    if pending <= budget:
        return pending
    size = min(budget, pending - min_chunk_tokens)
    return size if size >= min_chunk_tokens else 0
