"""A BERT encoder as an OpenVINO graph, built straight from its weights: no framework in between.

Inputs input_ids, attention_mask, token_type_ids [B, T] i64; output last_hidden_state [B, T, H] f32. The layers are
those of BERT (arXiv:1810.04805), named as in transformers' BertModel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from headrace.core.errors import InvalidRequest

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BertShape:
    """The numbers of a BERT's config.json that its weights do not tell."""

    num_layers: int
    num_heads: int
    epsilon: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "BertShape":
        """Raises InvalidRequest for a variant that the graph does not compute."""
        if (
            config.get("hidden_act", "gelu") != "gelu"
            or config.get("position_embedding_type", "absolute") != "absolute"
        ):
            raise InvalidRequest("only BERTs with gelu and absolute positions are built", field="source")
        return cls(config["num_hidden_layers"], config["num_attention_heads"], config.get("layer_norm_eps", 1e-12))


def labels(weights: Mapping[str, Float32], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of the classification head, one a score; () where there is none."""
    if "classifier.weight" not in weights or "pooler.dense.weight" not in weights:
        return ()
    names = config.get("id2label") or {}
    return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(len(weights["classifier.weight"])))


def build(weights: Mapping[str, Float32], shape: BertShape, *, head: bool = False) -> ov.Model:
    """The graph; `weights` by their names in BertModel. With `head` its output is `scores` [B, N] f32 instead."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [op.parameter([-1, -1], ov.Type.i64, name=name) for name in names]
    for parameter, name in zip(inputs, names, strict=True):
        parameter.output(0).set_names({name})
    ids, mask, types = inputs
    layers = _Layers(weights, shape)
    length = op.gather(op.shape_of(ids), op.constant([1], ov.Type.i64), op.constant(0, ov.Type.i64))
    positions = op.slice(layers.weight("embeddings.position_embeddings.weight"), [0], length, [1], [0])
    words, kinds = (
        op.gather(layers.weight(f"embeddings.{name}_embeddings.weight"), index, op.constant(0, ov.Type.i64))
        for name, index in (("word", ids), ("token_type", types))
    )
    hidden = layers.norm(op.add(op.add(words, kinds), positions), "embeddings.LayerNorm")
    shut = op.subtract(op.constant(np.float32(1)), op.convert(mask, "f32"))
    bias = op.multiply(op.unsqueeze(shut, op.constant([1, 2])), op.constant(np.finfo(np.float32).min))
    for layer in range(shape.num_layers):
        hidden = layers.encoder(hidden, bias, f"encoder.layer.{layer}.")
    if head:
        scores = layers.head(hidden)
        scores.output(0).set_names({"scores"})
        return ov.Model([scores], inputs, "bert")
    hidden.output(0).set_names({"last_hidden_state"})
    return ov.Model([hidden], inputs, "bert")


class _Layers:
    def __init__(self, weights: Mapping[str, Float32], shape: BertShape) -> None:
        self._weights, self._shape = weights, shape

    def weight(self, name: str) -> ov.Node:
        if name not in self._weights:
            raise InvalidRequest(f"the safetensors hold no {name}", field="source")
        return op.constant(self._weights[name])

    def encoder(self, hidden: ov.Node, bias: ov.Node, prefix: str) -> ov.Node:
        queries, keys, values = (
            self._heads(self._linear(hidden, f"{prefix}attention.self.{name}")) for name in ("query", "key", "value")
        )
        mixed = op.scaled_dot_product_attention(queries, keys, values, bias)
        joined = op.reshape(op.transpose(mixed, [0, 2, 1, 3]), [0, 0, -1], special_zero=True)
        attended = op.add(self._linear(joined, f"{prefix}attention.output.dense"), hidden)
        hidden = self.norm(attended, f"{prefix}attention.output.LayerNorm")
        inner = op.gelu(self._linear(hidden, f"{prefix}intermediate.dense"), "erf")
        return self.norm(op.add(self._linear(inner, f"{prefix}output.dense"), hidden), f"{prefix}output.LayerNorm")

    def head(self, hidden: ov.Node) -> ov.Node:
        """[B, T, H] -> [B, N]: BERT's pooler over the first token, and the classifier."""
        first = op.gather(hidden, op.constant(0, ov.Type.i64), op.constant(1, ov.Type.i64))
        return self._linear(op.tanh(self._linear(first, "pooler.dense")), "classifier")

    def norm(self, hidden: ov.Node, name: str) -> ov.Node:
        scaled = op.mvn(hidden, [-1], True, self._shape.epsilon, "inside_sqrt")
        return op.add(op.multiply(scaled, self.weight(f"{name}.weight")), self.weight(f"{name}.bias"))

    def _linear(self, hidden: ov.Node, name: str) -> ov.Node:
        return op.add(op.matmul(hidden, self.weight(f"{name}.weight"), False, True), self.weight(f"{name}.bias"))

    def _heads(self, hidden: ov.Node) -> ov.Node:
        """[B, T, H] -> [B, heads, T, size]."""
        split = op.reshape(hidden, [0, 0, self._shape.num_heads, -1], special_zero=True)
        return op.transpose(split, [0, 2, 1, 3])
