"""Guesses in the steps of one executor: which rows they get, and what came of them. How is speculation's to say."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from headrace.core.step_model import StepModel
from headrace.executor.engines.protocol import Int64
from headrace.executor.planner import Row
from headrace.executor.sequence import Sequence
from headrace.executor.speculation import Width, guess_next, likeliest, worth

MOST_ROWS = 8
"""No step is made longer than this for guesses: with more rows each costs about what a decode does."""
_CHANGE_STEPS = 0.5
"""What a step costs more when its shape is new, in steps: measured on OpenVINO, docs/speculation.md."""


@dataclass(frozen=True, slots=True)
class _Guess:
    sequence: Sequence
    num_tokens: int
    tokens: Int64


class Speculator:
    """Guesses up to `most_tokens` tokens of a sequence a step, 0: none. `min_rows` is the engine's. It counts the rows
    that were `num_proposed` and the tokens that they brought, `num_accepted`."""

    def __init__(self, most_tokens: int, min_rows: int) -> None:
        self.num_proposed = 0
        self.num_accepted = 0
        self._most_tokens = most_tokens
        self._min_rows = min_rows
        self._guesses: list[_Guess] = []
        self._width = Width()
        self._steady: tuple[int, int] | None = None  # rows of the last step and room beside them, if all rows decoded

    def extend(self, rows: list[Row], budget: int, steps: StepModel) -> tuple[list[Row], int]:
        """The rows of a step, and behind a sequence's decode those of its guesses; and how many rows there are to be,
        with dummies. `budget` tokens in all at most. No guess reaches beyond an answer's `max_tokens`, so the blocks
        reserved for it are enough."""
        decodes = [row for row in rows if row.last and not row.sequence.prefilling]
        num_tokens = sum(row.num_tokens for row in rows)
        room = min(MOST_ROWS - len(rows), budget - num_tokens, self._most_tokens * len(decodes))
        self._guesses = []
        if room <= 0:
            self._steady = None
            return rows, len(rows)
        self._guesses = [self._guess(row.sequence) for row in decodes]
        rates = [guess.sequence.acceptance.rate for guess in self._guesses]
        chosen = likeliest(rates, [len(guess.tokens) for guess in self._guesses], room)
        num_single = sum(row.num_tokens == 1 for row in rows)
        step_s = steps.seconds(num_single, num_tokens - num_single)
        free = self._min_rows - len(rows)
        values = worth([each for each, _ in chosen], room, free, step_s / len(decodes), steps.coefficients[1])
        if self._steady == (len(decodes), room) and len(decodes) == len(rows):
            self._width.follow(values, _CHANGE_STEPS * step_s)
        else:
            self._width.begin(values)
        self._steady = (len(rows), room) if len(decodes) == len(rows) else None
        counts = [0] * len(decodes)
        for _, place in chosen[: self._width.now]:
            counts[place] += 1
        guessed = {
            guess.sequence: guess.tokens[:count].tolist() for guess, count in zip(self._guesses, counts, strict=True)
        }
        extended: list[Row] = []
        for row in rows:
            extended.append(row)
            if row.last:
                for past, token_id in enumerate(guessed.get(row.sequence, ()), row.past + 1):
                    extended.append(Row(row.sequence, past, 1, True, token_id))
        return extended, len(rows) + self._width.now

    def learn(self, rows: Many[Row]) -> None:
        """The step of these rows has been read."""
        self.num_proposed += sum(row.guess is not None for row in rows)
        for guess in self._guesses:
            sequence = guess.sequence
            tokens = sequence.token_ids[guess.num_tokens : sequence.num_tokens]
            if len(tokens):
                self.num_accepted += len(tokens) - 1
                if len(guess.tokens):
                    sequence.acceptance.observe(guess.tokens, tokens)

    def _guess(self, sequence: Sequence) -> _Guess:
        most = min(self._most_tokens, sequence.job.sampling.max_tokens - sequence.num_answer_tokens - 1)
        if sequence.guide is not None:
            most = 0  # what may follow a guess is known only once it has come true
        known = sequence.token_ids[: sequence.num_tokens]
        return _Guess(sequence, sequence.num_tokens, guess_next(known, max(0, most)))
