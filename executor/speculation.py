"""Which tokens may come next in an answer, and how many of them are worth rows of the next step.

A guess is what followed the sequence's last tokens when they stood in it before (n-gram lookup: Saxena, Prompt Lookup
Decoding, 2023). Each guessed token is a row of its own behind the decode's, so that a step can choose several tokens.
A row is read only if all the guesses before it came true, and it then gives what the next step's decode would have
given, bit for bit: a guess can make an answer sooner, never another one.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from headrace.executor.engines.protocol import Int64

_LONGEST_GRAM, _SHORTEST_GRAM = 5, 2
_KEEP = 0.9


def guess_next(tokens: Int64, count: int) -> Int64:
    """`count` tokens that may follow `tokens` [T], or none: what followed the last two to five of them, as many as
    possible, where they stood last. A repetition that is shorter than `count` is gone on with."""
    places = np.flatnonzero(tokens[:-1] == tokens[-1])
    for size in range(2, _LONGEST_GRAM + 1):
        longer = places[places >= size - 1]
        longer = longer[tokens[longer - size + 1] == tokens[-min(size, len(tokens))]]
        if not len(longer):
            if size <= _SHORTEST_GRAM:
                return tokens[:0]
            break
        places = longer
    begin = int(places[-1]) + 1
    return tokens[begin + np.arange(count) % (len(tokens) - begin)]


@dataclass(slots=True)
class Acceptance:
    """How many of a sequence's guessed tokens came true, of those whose turn came; the last ones count most. It learns
    from guesses that had no row too."""

    right: float = 1.0
    tried: float = 2.0

    @property
    def rate(self) -> float:
        return self.right / self.tried

    def observe(self, guess: Int64, tokens: Int64) -> None:
        """`tokens` [T >= 1] are those that came."""
        count = min(len(guess), len(tokens))
        wrong = np.flatnonzero(guess[:count] != tokens[:count])
        right = int(wrong[0]) if len(wrong) else count
        self.right = self.right * _KEEP + right
        self.tried = self.tried * _KEEP + min(right + 1, count)


def allot(rates: Many[float], counts: Many[int], room: int, free: int, share_s: float, row_s: float) -> list[int]:
    """How many guessed tokens of each sequence go into the step.

    The i-th comes true with probability rate ** i, and then saves the sequence's share of a step, `share_s`; its row
    costs `row_s`. The likeliest go first, `room` rows at most. The first `free` rows take the place of dummies.
    """
    gains = [(rate**i, place) for place, rate in enumerate(rates) for i in range(1, counts[place] + 1)]
    gains.sort(key=lambda gain: -gain[0])  # stable: a sequence's own stay in order
    allotted = [0] * len(rates)
    for number, (probability, place) in enumerate(gains[:room]):
        if number >= free and probability * share_s <= row_s:
            break
        allotted[place] += 1
    return allotted
