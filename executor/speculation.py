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

    right: float = 0.5
    tried: float = 1.5

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


def likeliest(rates: Many[float], counts: Many[int], room: int) -> list[tuple[float, int]]:
    """The guessed tokens that are likeliest to come true, `room` at most: the probability, and whose it is. The i-th of
    a sequence has the probability rate ** i."""
    guesses = [(rate**i, place) for place, rate in enumerate(rates) for i in range(1, counts[place] + 1)]
    guesses.sort(key=lambda guess: -guess[0])  # stable: a sequence's own stay in order
    return guesses[:room]


def worth(probabilities: Many[float], room: int, free: int, share_s: float, row_s: float) -> list[float]:
    """[room + 1]: the seconds that a step of so many more rows saves. A token that comes true saves its sequence's part
    of a step, `share_s`; a row costs `row_s`, the first `free` rows a third of that: they take dummies' places."""
    values = [0.0]
    for place in range(room):
        gain = probabilities[place] * share_s if place < len(probabilities) else 0.0
        values.append(values[-1] + gain - (row_s / 3 if place < free else row_s))
    return values


class Width:
    """How many rows steps have for guesses: `now`. Engines prepare anew for a step of another shape than the last, so
    it stays until another number would by now have saved more than the change costs."""

    def __init__(self) -> None:
        self.now = 0
        self._regrets: list[float] = []

    def begin(self, values: Many[float]) -> None:
        """The shape changes anyway: takes the number whose value is greatest, the least of equal ones."""
        self.now = max(range(len(values)), key=values.__getitem__)
        self._regrets = [0.0] * len(values)

    def follow(self, values: Many[float], change_s: float) -> None:
        """One more step with the values of the numbers, as many as when it began."""
        here = values[self.now]
        self._regrets = [max(0.0, regret + value - here) for regret, value in zip(self._regrets, values, strict=True)]
        best = max(range(len(values)), key=self._regrets.__getitem__)
        if self._regrets[best] > change_s:
            self.now = best
            self._regrets = [0.0] * len(values)
