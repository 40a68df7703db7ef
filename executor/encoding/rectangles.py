"""A batch's texts as the rectangles that the engine computes: each text in a row of its own, or several in one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.packing import pack, rounded_up
from headrace.executor.encoding.lengths import ALIGN_TOKENS, padded_length
from headrace.executor.encoding.task import Task
from headrace.executor.engines.encoder import EncoderSpec, Int64

MOST_A_ROW = 16
"""Texts for each row that the scheduler is offered room for: rows of very short ones stay shorter."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """One forward: rows of `length` tokens, each with one text or several, one after the other."""

    rows: Sequence[Sequence[Task]]
    length: int

    @property
    def tasks(self) -> list[Task]:
        return [task for row in self.rows for task in row]

    def places(self) -> Iterator[tuple[Task, int, int]]:
        """Each text with its row and where in it it begins."""
        for number, row in enumerate(self.rows):
            start = 0
            for task in row:
                yield task, number, start
                start += len(task.token_ids)

    def arrays(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Token ids, token types, segments and positions, [rows, length] each."""
        shape = len(self.rows), self.length
        token_ids, token_types, segments, positions = (np.zeros(shape, np.int64) for _ in range(4))
        for task, row, start in self.places():
            end = start + len(task.token_ids)
            token_ids[row, start:end] = task.token_ids
            token_types[row, start + task.first_tokens : end] = 1
            segments[row, start:end] = segments[row].max() + 1
            positions[row, start:end] = np.arange(end - start)
        return token_ids, token_types, segments, positions


def rectangles(tasks: Sequence[Task], spec: EncoderSpec, batch_rows: int) -> list[Rectangle]:
    """The fewest of at most `batch_rows` rows that hold all.

    One text a row: a text's own length alone decides how long its row is. Packed: rows are as long as the scheduler
    said, and never longer than the context.
    """
    if spec.packs:
        lengths = [len(task.token_ids) for task in tasks]
        row_tokens = min(max([*lengths, *(task.row_tokens for task in tasks)], default=0), spec.context_tokens)
        packed = [[tasks[place] for place in row] for row in pack(lengths, row_tokens, len(tasks))]
        parts = [packed[start : start + batch_rows] for start in range(0, len(packed), batch_rows)]
        return [Rectangle(rows, _longest(rows, spec.context_tokens)) for rows in parts]
    groups: dict[int, list[list[Task]]] = {}
    for task in tasks:
        groups.setdefault(padded_length(len(task.token_ids), spec.context_tokens), []).append([task])
    return [
        Rectangle(rows[start : start + batch_rows], length)
        for length, rows in sorted(groups.items())
        for start in range(0, len(rows), batch_rows)
    ]


def _longest(rows: Sequence[Sequence[Task]], context_tokens: int) -> int:
    longest = max(sum(len(task.token_ids) for task in row) for row in rows)
    return min(rounded_up(longest, ALIGN_TOKENS), context_tokens)
