"""A decoder of the Llama family as one standard ONNX graph, out of a GGUF file: for engines built of ONNX.

Opset 24 has all that it takes: RMSNormalization, RotaryEmbedding, Attention with grouped heads, and TensorScatter,
which writes new keys and values into a linear cache at a place of each row's own. There is one cache for each layer's
keys and each layer's values, of `slots` tokens a row. Rows are padded: new tokens stand first, `mask` says which
cached tokens each of them sees, and `last` which of them has its logits computed.

Needs `onnx`; imported when an export is asked for.
"""

from pathlib import Path

import numpy as np
import onnx
from gguf import dequantize
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from headrace.core.errors import InvalidRequest
from headrace.models.gguf_file import GgufFile
from headrace.models.gguf_forward import ARCHITECTURES

OPSET = 24
_IR = 11  # of the file format, as old as the opset allows

Float32 = NDArray[np.float32]


def export_onnx(file: GgufFile, path: Path, slots: int) -> None:
    """Writes the graph in float32, with its weights beside it in PATH.weights.

    Raises InvalidRequest where the architecture is none of the family, or `slots` is over its context.
    """
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InvalidRequest(f"no ONNX graph is made of {file.architecture}", field="source", limit=known)
    if not 1 <= slots <= file.context_tokens:
        raise InvalidRequest(
            f"a cache of {slots} tokens for a context of {file.context_tokens}",
            field="slots",
            limit=f"1..{file.context_tokens}",
        )
    model = _Graph(file, slots).model()
    weights = f"{path.name}.weights"
    (path.parent / weights).unlink(missing_ok=True)  # onnx appends
    onnx.save(model, path, save_as_external_data=True, location=weights, size_threshold=1024)


class _Graph:
    """Collects nodes and constants; each method returns the name of what it computes."""

    def __init__(self, file: GgufFile, slots: int) -> None:
        self._tensors = {tensor.name: tensor for tensor in file.reader.tensors}
        self._slots = slots
        self._num_layers = int(file.wanted(".block_count"))
        self._num_heads = int(file.wanted(".attention.head_count"))
        self._num_kv_heads = int(file.value(".attention.head_count_kv", self._num_heads))
        self._epsilon = float(file.wanted(".attention.layer_norm_rms_epsilon"))
        width = int(file.wanted(".embedding_length"))
        self._head_size = int(file.value(".attention.key_length", width // self._num_heads))
        self._rotated = int(file.value(".rope.dimension_count", self._head_size))
        self._base = float(file.value(".rope.freq_base", 10_000.0))
        # GGUF reorders Llama's query and key rows so that a rotated pair lies side by side; others keep halves.
        self._interleaved = int(file.architecture == "llama")
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}

    def model(self) -> ModelProto:
        self._rotations()
        embedding = self._weight("token_embd.weight")
        hidden = self._node("Gather", [embedding, "input_ids"], "hidden")
        for layer in range(self._num_layers):
            hidden = self._block(layer, hidden)
        picked = self._node("GatherND", [hidden, self._last()], "last_hidden", batch_dims=1)
        head = "output.weight" if "output.weight" in self._tensors else "token_embd.weight"
        normal = self._norm(picked, "output_norm")
        self._node("MatMul", [normal, self._turned(head)], "logits")
        graph = helper.make_graph(self._nodes, "decoder", self._inputs(), self._outputs(), [*self._constants.values()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR)

    def _block(self, layer: int, hidden: str) -> str:
        prefix = f"blk.{layer}."
        mixed = self._attention(layer, self._norm(hidden, prefix + "attn_norm"))
        hidden = self._node("Add", [hidden, mixed], prefix + "mixed")
        normal = self._norm(hidden, prefix + "ffn_norm")
        gate, up = (self._linear(normal, f"{prefix}ffn_{part}") for part in ("gate", "up"))
        opened = self._node("Mul", [gate, self._node("Sigmoid", [gate], prefix + "open")], prefix + "gated")
        fed = self._linear(self._node("Mul", [opened, up], prefix + "fed"), prefix + "ffn_down")
        return self._node("Add", [hidden, fed], prefix + "hidden")

    def _attention(self, layer: int, normal: str) -> str:
        prefix = f"blk.{layer}."
        heads = {part: self._heads(prefix, part, normal) for part in "qkv"}
        for part in "qk":
            inputs = [heads[part], "rotation_cos", "rotation_sin", "positions"]
            attributes = {"interleaved": self._interleaved}
            if self._rotated != self._head_size:
                attributes |= {"rotary_embedding_dim": self._rotated, "num_heads": 0}
            heads[part] = self._node("RotaryEmbedding", inputs, f"{prefix}{part}_turned", **attributes)
        for part in "kv":
            self._node(
                "TensorScatter", [f"past_{part}.{layer}", heads[part], "write_at"], f"present_{part}.{layer}", axis=2
            )
        seen = self._node(
            "Attention", [heads["q"], f"present_k.{layer}", f"present_v.{layer}", "mask"], prefix + "seen"
        )
        rows = self._node("Transpose", [seen], prefix + "seen_rows", perm=[0, 2, 1, 3])
        joined = self._node("Reshape", [rows, self._shape("joined", 0, 0, -1)], prefix + "joined")
        return self._linear(joined, prefix + "attn_output")

    def _heads(self, prefix: str, part: str, normal: str) -> str:
        """[B, heads, T, head size]."""
        flat = self._linear(normal, f"{prefix}attn_{part}")
        num_heads = self._num_heads if part == "q" else self._num_kv_heads
        to = self._shape(f"heads_{num_heads}", 0, 0, num_heads, self._head_size)
        split = self._node("Reshape", [flat, to], f"{prefix}{part}_split")
        if part != "v" and f"{prefix}attn_{part}_norm.weight" in self._tensors:  # Qwen 3
            split = self._norm(split, f"{prefix}attn_{part}_norm")
        return self._node("Transpose", [split], f"{prefix}{part}_heads", perm=[0, 2, 1, 3])

    def _rotations(self) -> None:
        frequencies = self._base ** -(np.arange(0, self._rotated, 2) / self._rotated)
        if "rope_freqs.weight" in self._tensors:
            frequencies /= self._array("rope_freqs.weight")
        angles = np.outer(np.arange(self._slots), frequencies)
        self._constant("rotation_cos", np.cos(angles).astype(np.float32))
        self._constant("rotation_sin", np.sin(angles).astype(np.float32))

    def _last(self) -> str:
        """[B, 1] of which token of its row each row's logits are."""
        return self._node("Unsqueeze", ["last", self._shape("one", 1)], "last_places")

    def _norm(self, hidden: str, name: str) -> str:
        inputs = [hidden, self._weight(f"{name}.weight")]
        return self._node("RMSNormalization", inputs, f"{name}.normal", axis=-1, epsilon=self._epsilon)

    def _linear(self, hidden: str, name: str) -> str:
        product = self._node("MatMul", [hidden, self._turned(f"{name}.weight")], f"{name}.product")
        if f"{name}.bias" not in self._tensors:  # Qwen 2 has some
            return product
        return self._node("Add", [product, self._weight(f"{name}.bias")], f"{name}.sum")

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: int | float | list[int]) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _weight(self, name: str) -> str:
        return self._constant(name, self._array(name))

    def _turned(self, name: str) -> str:
        """[K, N] of a matrix that GGUF has as [N, K]."""
        turned = f"{name}.turned"
        return (
            turned if turned in self._constants else self._constant(turned, np.ascontiguousarray(self._array(name).T))
        )

    def _array(self, name: str) -> Float32:
        tensor = self._tensors[name]
        return np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)

    def _shape(self, name: str, *sizes: int) -> str:
        return self._constant(f"shape_{name}", np.array(sizes, np.int64))

    def _constant(self, name: str, array: NDArray[np.float32] | NDArray[np.int64]) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        value, int64 = helper.make_tensor_value_info, TensorProto.INT64
        return [
            value("input_ids", int64, ["batch", "sequence"]),
            value("positions", int64, ["batch", "sequence"]),
            value("write_at", int64, ["batch"]),
            value("last", int64, ["batch"]),
            value("mask", TensorProto.BOOL, ["batch", 1, "sequence", self._slots]),
            *self._caches("past"),
        ]

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        vocabulary = self._tensors["token_embd.weight"].shape[-1]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", int(vocabulary)])
        return [logits, *self._caches("present")]

    def _caches(self, when: str) -> list[onnx.ValueInfoProto]:
        shape = ["batch", self._num_kv_heads, self._slots, self._head_size]
        return [
            helper.make_tensor_value_info(f"{when}_{part}.{layer}", TensorProto.FLOAT, shape)
            for layer in range(self._num_layers)
            for part in "kv"
        ]
