"""What is trained of the screen: from a window's vector and n-grams to calibrated probabilities, and the thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from headrace.core.screening import Verdict
from headrace.preprocess.screen.ngrams import ngrams

Float32 = NDArray[np.float32]
WEIGHTS = "minilm-1.npz"


@dataclass(frozen=True, slots=True)
class Head:
    """For each of C categories two linear classifiers, one hidden layer beside the first, joined and calibrated.

    mean, spread [D]; dense [C, D]; hidden [C, D, U], hidden_bias [C, U], out [C, U]; grams [C, NUM_BUCKETS];
    joint [C, 4]: factors of linear, hidden and n-gram logits, and the bias; thresholds [C], probabilities.
    """

    name: str
    categories: Sequence[str]
    mean: Float32
    spread: Float32
    dense: Float32
    hidden: Float32
    hidden_bias: Float32
    out: Float32
    grams: Float32
    joint: Float32
    thresholds: Float32

    def probabilities(self, vectors: Float32, texts: Sequence[str]) -> Float32:
        """[N, C] for vectors [N, D] and their windows' texts."""
        logits = np.stack(self.logits(vectors, texts), axis=-1)  # [N, C, 3]
        joined = (logits * self.joint[:, :3]).sum(axis=-1) + self.joint[:, 3]
        return np.asarray(1 / (1 + np.exp(-joined)), np.float32)

    def logits(self, vectors: Float32, texts: Sequence[str]) -> tuple[Float32, Float32, Float32]:
        """Each [N, C]: by the linear classifier, by the hidden layer, by the n-grams."""
        x = (vectors - self.mean) / self.spread
        inner = np.maximum(np.einsum("nd,cdu->ncu", x, self.hidden, optimize=True) + self.hidden_bias, 0)
        grams = np.stack(
            [self.grams[:, buckets] @ weights for buckets, weights in map(ngrams, texts)], dtype=np.float32
        )
        return np.asarray(x @ self.dense.T, np.float32), np.einsum("ncu,cu->nc", inner, self.out), grams

    def verdicts(self, vectors: Float32, texts: Sequence[str]) -> list[Verdict]:
        """Found is what reaches its category's threshold; of several the one that is furthest above it."""
        verdicts = []
        for row in self.probabilities(vectors, texts):
            found = int(np.argmax(row / self.thresholds))
            category = self.categories[found] if row[found] >= self.thresholds[found] else ""
            verdicts.append(Verdict(category, float(row[found]), self.name))
        return verdicts


def load_head() -> Head:
    """The trained head that comes with the package."""
    data = files("headrace.preprocess.screen").joinpath("weights", WEIGHTS).read_bytes()
    with np.load(BytesIO(data)) as arrays:
        named = {key: arrays[key].astype(np.float32) for key in arrays.files if key not in ("name", "categories")}
        return Head(str(arrays["name"]), [str(category) for category in arrays["categories"]], **named)
