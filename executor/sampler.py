"""Chooses the tokens of one answer from the engine's logits. Owns the answer's counts and position; reads, never keeps,
a step's output. What ends an answer is the step loop's to say.

Order: penalties, then `min_tokens` masks what would end the answer and a constraint what it does not allow, then
temperature, top-k, top-p, min-p, draw. A choice depends on the row, the settings, the answer's tokens and (seed, index,
position) only: not on batch mates, nor on how much of the row was looked at.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import EngineFault
from headrace.core.request import Sampling
from headrace.executor.draw import Ids, Logits, draw, log_normaliser, ordered_prefix, uniform, weights
from headrace.executor.engines.protocol import Float32, StepOutput
from headrace.executor.guide import Guide
from headrace.executor.penalties import Penalties

WIDER_TOKENS = (1024, 8192)  # looked at when the candidates do not hold the draw, before the whole row


@dataclass(slots=True)
class Choice:
    """A token; with logprobs asked for, log softmax of the raw logits, natural log: its own and the most probable
    tokens' (id, logprob), best first. Otherwise 0.0 and ()."""

    token_id: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class SequenceSampler:
    """`index` is the answer's place among its request's; `eos_token_ids` end it unless the settings ignore them.

    A resumed answer is told its earlier tokens by `resume` and goes on as if never interrupted. A constrained one has a
    `guide`, which is ready whenever a token is chosen or accepted.
    """

    def __init__(
        self,
        sampling: Sampling,
        index: int,
        prompt_ids: NDArray[np.uint32],
        eos_token_ids: tuple[int, ...],
        spec_vocab_size: int,
        guide: Guide | None = None,
    ) -> None:
        self.guide = guide
        self._sampling = sampling
        self._index = index
        self._vocab_size = spec_vocab_size
        self._position = 0
        endings = sampling.stop_token_ids + (() if sampling.ignore_eos else eos_token_ids)
        self._endings = np.unique(np.array(endings, np.int64))
        self._penalties = Penalties(sampling, prompt_ids) if sampling.penalised else None

    def certain(self, best: int) -> bool:
        """True if `choose` is certain to be the row's first candidate, `best`: the loop may take that and only
        `accept`."""
        sampling = self._sampling
        plain = sampling.greedy and not sampling.penalised and sampling.logprobs is None and not self._masking
        return plain and (self.guide is None or self.guide.allows(best))

    @property
    def _masking(self) -> bool:
        return self._position < self._sampling.min_tokens and len(self._endings) > 0

    def accept(self, token_id: int) -> None:
        """Records the answer's next token. Raises what its guide does."""
        self._record(token_id)
        if self.guide is not None:
            self.guide.accept(token_id)

    def resume(self, token_ids: Ids) -> None:
        """Records the answer's tokens so far, which its guide has been told."""
        for token_id in token_ids.tolist():
            self._record(token_id)

    def choose(self, output: StepOutput, row: int) -> Choice:
        """The next token from an output row. Records nothing. Raises EngineFault if a logit is not a finite number."""
        raw = output.logits(row)
        if len(raw) != self._vocab_size:
            raise EngineFault(f"the engine gave {len(raw)} logits for a vocabulary of {self._vocab_size}")
        if not np.isfinite(raw).all():
            raise EngineFault(f"the engine gave {np.count_nonzero(~np.isfinite(raw))} logits that are not finite")
        candidates = output.candidate_ids[row]
        adjusted = self._adjusted(raw)
        if self.guide is not None:
            token_id = self._guided(self.guide.allowed(), adjusted, candidates if adjusted is raw else candidates[:0])
        elif not self._sampling.greedy:
            prefixes = self._prefixes(adjusted, candidates, float(output.candidate_logits[row, -1]))
            token_id = self._drawn(adjusted, prefixes)
        elif adjusted is raw:
            token_id = int(candidates[0])
        else:
            token_id = int(np.argmax(adjusted))
        if self._sampling.logprobs is None:
            return Choice(token_id)
        return self._with_logprobs(token_id, raw, candidates)

    def _record(self, token_id: int) -> None:
        self._position += 1
        if self._penalties is not None:
            self._penalties.accept(token_id)

    def _guided(self, allowed: Ids, logits: Logits, candidates: Ids) -> int:
        """As if the vocabulary were the allowed tokens [A], ascending. `candidates` are the row's first in order, or
        none."""
        within = logits[allowed]
        if self._sampling.greedy:
            return int(allowed[np.argmax(within)])
        places = np.minimum(np.searchsorted(allowed, candidates), len(allowed) - 1)
        first = places[allowed[places] == candidates]
        return int(allowed[self._drawn(within, chain((first,), _wider(within)))])

    def _adjusted(self, raw: Float32) -> Logits:
        """The row itself where nothing changes it, else a changed copy."""
        if self._penalties is None and not self._masking:
            return raw
        adjusted = raw.astype(np.float64)
        if self._penalties is not None:
            self._penalties.apply(adjusted)
        if self._masking:
            adjusted[self._endings] = -np.inf
        return adjusted

    def _touched(self) -> Ids:
        """Tokens whose logits `_adjusted` may change."""
        ids = self._endings if self._masking else self._endings[:0]
        return ids if self._penalties is None else np.concatenate([ids, self._penalties.touched])

    def _drawn(self, logits: Logits, prefixes: Iterable[Ids]) -> int:
        sampling = self._sampling
        point = uniform(sampling.seed, self._index, self._position)

        def normaliser() -> float:
            return float(weights(logits, float(logits.max()), sampling.temperature).sum())

        for ids in prefixes:
            descending = logits[ids]
            if not len(ids) or descending[0] == -np.inf:
                continue
            place = draw(descending, len(ids) == len(logits), sampling, point, normaliser)
            if place is not None:
                return int(ids[place])
        raise EngineFault("no token can be drawn: min_tokens masks the whole vocabulary")

    def _prefixes(self, logits: Logits, candidates: Ids, least_candidate: float) -> Iterator[Ids]:
        """Ever longer prefixes of the row's tokens in descending order, the last one whole."""
        touched = self._touched()
        if not len(touched):
            yield candidates
        else:
            # A token neither candidate nor touched is at most `least_candidate`, so what stands above that is in order.
            ids = np.unique(np.concatenate([candidates, touched]))
            ids = ids[logits[ids] > least_candidate]
            yield ids[np.argsort(-logits[ids], kind="stable")]
        yield from _wider(logits)

    def _with_logprobs(self, token_id: int, raw: Float32, candidates: Ids) -> Choice:
        count = self._sampling.logprobs or 0
        best = candidates if count <= len(candidates) else ordered_prefix(raw, min(count, len(raw)))
        total = log_normaliser(raw)
        top = tuple((int(token), float(raw[token]) - total) for token in best[:count])
        return Choice(token_id, float(raw[token_id]) - total, top)


def _wider(logits: Logits) -> Iterator[Ids]:
    """Prefixes of the row's tokens in descending order, the last one whole."""
    for count in (*(wide for wide in WIDER_TOKENS if wide < len(logits)), len(logits)):
        yield ordered_prefix(logits, count)
