"""What a caller adds to the logits of single tokens."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import Sampling


class Bias:
    """As in OpenAI's API: added once, before the temperature."""

    def __init__(self, sampling: Sampling) -> None:
        self.ids: NDArray[np.int64] = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._added = np.array([added for _, added in sampling.logit_bias], np.float64)

    def apply(self, logits: NDArray[np.float64]) -> None:
        """Changes a row [V] in place."""
        logits[self.ids] += self._added
