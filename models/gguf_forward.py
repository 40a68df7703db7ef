"""A plain forward pass over a GGUF file's own weights, for comparing conversions with: no cache, no batching, no speed.

Knows the decoders of the Llama family that OpenVINO reads from GGUF: RMS norm, rotary positions, grouped-query
attention, SwiGLU; biases (Qwen 2) and normed queries and keys (Qwen 3) where the file has them.
"""

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray

from headrace.models.gguf_file import GgufFile

Float32 = NDArray[np.float32]

ARCHITECTURES = frozenset(("llama", "qwen2", "qwen3"))


class GgufForward:
    """Computes logits from weights dequantised to float32, one matrix at a time."""

    def __init__(self, file: GgufFile) -> None:
        self._tensors = {tensor.name: tensor for tensor in file.reader.tensors}
        self._num_layers = int(file.wanted(".block_count"))
        self._num_heads = int(file.wanted(".attention.head_count"))
        self._num_kv_heads = int(file.value(".attention.head_count_kv", self._num_heads))
        self._epsilon = float(file.wanted(".attention.layer_norm_rms_epsilon"))
        self._head_size = int(
            file.value(".attention.key_length", int(file.wanted(".embedding_length")) // self._num_heads)
        )
        rotated = int(file.value(".rope.dimension_count", self._head_size))
        self._frequencies = float(file.value(".rope.freq_base", 10_000.0)) ** -(np.arange(0, rotated, 2) / rotated)
        if "rope_freqs.weight" in self._tensors:
            self._frequencies /= self._weight("rope_freqs.weight")
        # GGUF reorders Llama's query and key rows so that a rotated pair lies side by side; others keep halves.
        self._pairs_adjacent = file.architecture == "llama"

    def logits(self, token_ids: NDArray[np.int64]) -> Float32:
        """[B, T, V] of B sequences' token ids [B, T]."""
        embedding = self._weight("token_embd.weight")
        hidden = embedding[token_ids]
        for layer in range(self._num_layers):
            prefix = f"blk.{layer}."
            hidden = hidden + self._attention(prefix, self._norm(hidden, prefix + "attn_norm"))
            hidden = hidden + self._feed_forward(prefix, self._norm(hidden, prefix + "ffn_norm"))
        hidden = self._norm(hidden, "output_norm")
        head = self._weight("output.weight") if "output.weight" in self._tensors else embedding
        return np.asarray(hidden @ head.T, np.float32)

    def _attention(self, prefix: str, hidden: Float32) -> Float32:
        batch, length, _ = hidden.shape
        queries, keys, values = (
            self._linear(hidden, f"{prefix}attn_{part}").reshape(batch, length, -1, self._head_size) for part in "qkv"
        )
        if f"{prefix}attn_q_norm.weight" in self._tensors:
            queries, keys = self._norm(queries, prefix + "attn_q_norm"), self._norm(keys, prefix + "attn_k_norm")
        queries, keys = self._rotate(queries), self._rotate(keys)
        group = self._num_heads // self._num_kv_heads
        keys, values = np.repeat(keys, group, axis=2), np.repeat(values, group, axis=2)
        scores = np.einsum("bqhd,bkhd->bhqk", queries, keys) / np.sqrt(self._head_size)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhd->bqhd", weights, values).reshape(batch, length, -1)
        return self._linear(mixed.astype(np.float32), prefix + "attn_output")

    def _rotate(self, heads: Float32) -> Float32:
        angles = np.arange(heads.shape[1])[:, None, None] * self._frequencies
        size = 2 * len(self._frequencies)
        lower, upper = slice(size // 2), slice(size // 2, size)
        if self._pairs_adjacent:
            lower, upper = slice(0, size, 2), slice(1, size, 2)
        rotated = heads.copy()
        rotated[..., lower] = heads[..., lower] * np.cos(angles) - heads[..., upper] * np.sin(angles)
        rotated[..., upper] = heads[..., upper] * np.cos(angles) + heads[..., lower] * np.sin(angles)
        return rotated

    def _feed_forward(self, prefix: str, hidden: Float32) -> Float32:
        gate = self._linear(hidden, prefix + "ffn_gate")
        return self._linear(gate / (1 + np.exp(-gate)) * self._linear(hidden, prefix + "ffn_up"), prefix + "ffn_down")

    def _norm(self, hidden: Float32, name: str) -> Float32:
        scale = np.sqrt(np.mean(hidden * hidden, axis=-1, keepdims=True) + self._epsilon)
        return np.asarray(hidden / scale * self._weight(f"{name}.weight"), np.float32)

    def _linear(self, hidden: Float32, name: str) -> Float32:
        product = hidden @ self._weight(f"{name}.weight").T
        bias = f"{name}.bias"
        return np.asarray(product + self._weight(bias) if bias in self._tensors else product, np.float32)

    def _weight(self, name: str) -> Float32:
        tensor = self._tensors[name]
        return np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
