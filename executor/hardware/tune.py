"""Measures what the table only supposes, with the engine and the step loop that serve: slots and tokens of a step."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from headrace.executor.engines.protocol import Engine
from headrace.executor.hardware.profile import Measured
from headrace.executor.hardware.search import Pair, Search, Setting, Tried, is_better, promising
from headrace.executor.hardware.trial import Load, run_trial

PAIRS = 3


@dataclass(frozen=True, slots=True)
class Tuned:
    """`final` are the pairs that settle it: the table's values against the best, measured anew."""

    start: Setting
    best: Setting
    tried: tuple[Tried, ...]
    final: tuple[Pair, ...]

    @property
    def improved(self) -> bool:
        return self.best != self.start and is_better(self.final)

    def as_measured(self, digest: str) -> Measured | None:
        """For the profile; None where the table's values stay."""
        if not self.improved:
            return None
        return Measured(
            self.best.num_slots,
            self.best.step_tokens,
            digest,
            round(median(pair.candidate for pair in self.final), 1),
            round(median(pair.best for pair in self.final), 1),
            time.strftime("%Y-%m-%d"),
        )


def tune(
    engine: Engine,
    eos_token_ids: tuple[int, ...],
    load: Load,
    start: Setting,
    *,
    trials: int,
    report: Callable[[Tried], None],
) -> Tuned:
    """Climbs from `start`, with `report` after each candidate; then measures the best and the start once more. Blocks.

    Raises EngineFault, or what refuses the load, such as PoolExhausted.
    """
    context_tokens = engine.spec.context_tokens
    search = Search(start, load.streams, max(start.step_tokens, 4 * context_tokens), trials)
    run_trial(engine, eos_token_ids, load, start)  # the first run pays for what is made once
    while (candidate := search.candidate()) is not None:
        report(search.tell(candidate, _pairs(engine, eos_token_ids, load, search.best, candidate)))
    final = () if search.best == start else _pairs(engine, eos_token_ids, load, start, search.best)
    return Tuned(start, search.best, tuple(search.tried), final)


def _pairs(
    engine: Engine, eos_token_ids: tuple[int, ...], load: Load, best: Setting, candidate: Setting
) -> tuple[Pair, ...]:
    """Alternating, the first of the two by turns first; no more than needed."""
    pairs: list[Pair] = []
    while len(pairs) < PAIRS and promising(pairs):
        order = (best, candidate) if len(pairs) % 2 == 0 else (candidate, best)
        measured = {each: run_trial(engine, eos_token_ids, load, each) for each in order}
        pairs.append(Pair(measured[best], measured[candidate]))
    return tuple(pairs)
