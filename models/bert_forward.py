"""A plain forward pass of a BERT encoder in numpy, for comparing the graph with: written apart from it on purpose."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

_erf = np.vectorize(math.erf, otypes=[np.float32])


def hidden_states(
    weights: Mapping[str, Float32], token_ids: Sequence[int], num_layers: int, num_heads: int, epsilon: float
) -> Float32:
    """The last hidden states [T, H] of one text's token ids [T]; all of type 0, none masked."""

    def dense(x: Float32, name: str) -> Float32:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"], np.float32)

    def norm(x: Float32, name: str) -> Float32:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
        return np.asarray(centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"], np.float32)

    x = weights["embeddings.word_embeddings.weight"][np.asarray(token_ids)]
    x = (
        x
        + weights["embeddings.position_embeddings.weight"][: len(x)]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(num_layers):
        prefix = f"encoder.layer.{layer}."
        query, key, value = (
            np.stack(np.split(dense(x, f"{prefix}attention.self.{part}"), num_heads, axis=-1))
            for part in ("query", "key", "value")
        )
        scores = np.exp(query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1]))
        mixed = np.concatenate(list(scores / scores.sum(axis=-1, keepdims=True) @ value), axis=-1)
        x = norm(dense(mixed, f"{prefix}attention.output.dense") + x, f"{prefix}attention.output.LayerNorm")
        inner = dense(x, f"{prefix}intermediate.dense")
        inner = inner * (1 + _erf(inner / math.sqrt(2))) / 2
        x = norm(dense(inner, f"{prefix}output.dense") + x, f"{prefix}output.LayerNorm")
    return x


def scores(weights: Mapping[str, Float32], hidden: Float32) -> Float32:
    """What a classification head [N] makes of one text's last hidden states [T, H]."""
    pooled = np.tanh(hidden[0] @ weights["pooler.dense.weight"].T + weights["pooler.dense.bias"])
    return np.asarray(pooled @ weights["classifier.weight"].T + weights["classifier.bias"], np.float32)
