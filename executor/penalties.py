"""The penalties of one answer: which tokens they touch, and by how much. Sparse: cost grows with the touched tokens,
not with the vocabulary."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import Sampling
from headrace.executor.bias import Bias


class Penalties:
    """Repetition (Keskar et al., CTRL, 2019; as in transformers) over prompt and answer: a positive logit is divided, a
    negative one multiplied. Presence and frequency (as in OpenAI's API) over the answer only: subtracted once, and once
    for each occurrence. Then what the caller adds to tokens of their choice."""

    def __init__(self, sampling: Sampling, prompt_ids: NDArray[np.uint32]) -> None:
        self._sampling = sampling
        start = np.unique(prompt_ids).astype(np.int64) if sampling.repetition_penalty != 1.0 else np.empty(0, np.int64)
        self._places = {int(token): place for place, token in enumerate(start)}
        self._ids = start
        self._counts = np.zeros(len(start))  # occurrences in the answer
        self._bias = Bias(sampling)

    def accept(self, token_id: int) -> None:
        """Counts one more token of the answer. Amortised O(1)."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.resize(self._ids, max(16, 2 * place))
            self._counts = np.concatenate([self._counts, np.zeros(len(self._ids) - place)])
        self._ids[place] = token_id
        self._counts[place] += 1

    @property
    def touched(self) -> NDArray[np.int64]:
        """Ids of the tokens whose logits `apply` may change."""
        return np.concatenate([self._penalised, self._bias.ids]) if len(self._bias.ids) else self._penalised

    @property
    def _penalised(self) -> NDArray[np.int64]:
        """Each once."""
        return self._ids[: len(self._places)]

    def apply(self, logits: NDArray[np.float64]) -> None:
        """Changes the touched tokens of a row [V] in place."""
        settings, ids, counts = self._sampling, self._penalised, self._counts[: len(self._places)]
        values = logits[ids]
        values = np.where(values > 0, values / settings.repetition_penalty, values * settings.repetition_penalty)
        values -= settings.frequency_penalty * counts
        values -= settings.presence_penalty * (counts > 0)
        logits[ids] = values
        self._bias.apply(logits)
