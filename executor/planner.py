"""Who is in the next step, with how many tokens: running decodes first, then prefill chunks. Pure."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from headrace.executor.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """`num_tokens` of the sequence's pending tokens go into the step; `last`: its next token is then chosen."""

    sequence: Sequence
    num_tokens: int
    last: bool


def plan_rows(sequences: Many[Sequence], step_tokens: int, min_chunk_tokens: int) -> list[Row]:
    """Rows of one step within the token budget.

    Every decode has its row, whatever the budget: an answer once begun keeps its pace. What is left of the budget goes
    to prefills, the lower priority number and the earlier arrival first. No chunk and no rest of a prompt is shorter
    than `min_chunk_tokens`, since the engine's bits change there; the exception is a prompt that is itself shorter.
    """
    rows = [Row(sequence, 1, True) for sequence in sequences if not sequence.prefilling]
    budget = step_tokens - len(rows)
    waiting = [sequence for sequence in sequences if sequence.prefilling]
    waiting.sort(key=lambda sequence: (sequence.job.priority, sequence.arrival))
    for sequence in waiting:
        size = chunk_tokens(sequence.num_pending, budget, min_chunk_tokens)
        if size == 0 and not rows:
            size = min(sequence.num_pending, min_chunk_tokens)  # a budget below the bound must not stop the loop
            size += sequence.num_pending - size if 0 < sequence.num_pending - size < min_chunk_tokens else 0
        if size == 0:
            break
        rows.append(Row(sequence, size, size == sequence.num_pending))
        budget -= size
    return rows


def chunk_tokens(pending: int, budget: int, min_chunk_tokens: int) -> int:
    """The largest chunk within the budget that leaves no rest shorter than the bound; 0 if there is none."""
    if pending <= budget:
        return pending
    size = min(budget, pending - min_chunk_tokens)
    return size if size >= min_chunk_tokens else 0
