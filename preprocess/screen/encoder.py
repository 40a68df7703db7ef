"""The sentence encoder behind the screen: a window of text to one vector, on OpenVINO.

Windows are never padded: only those of equal length go through together, so that no verdict depends on its company.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.models.repository import ModelEntry

WINDOW_TOKENS = 126
"""Of text, beside the two that BERT puts around it: half of what the encoder takes, as long as it was trained on."""
LEAST_TOKENS = 16
"""A last window shorter than this goes to the one before it."""
USED_LAYERS = 3
"""Means over the last so many layers' hidden states are parts of the vector; lower layers hold on to words."""


@dataclass(frozen=True, slots=True)
class TextWindow:
    """A part of a text, and its token ids with BERT's own around them."""

    text: str
    token_ids: tuple[int, ...]


class WindowEncoder:
    """Safe to share between threads; at most `threads` encode at once, each on one core."""

    def __init__(self, entry: ModelEntry, threads: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(entry.tokenizer))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        first, last = self._tokenizer.encode("").ids  # BERT's [CLS] and [SEP]
        self._around = int(first), int(last)
        self._model = _compile(entry.graph, threads)

    def split(self, text: str) -> list[TextWindow]:
        """Windows of WINDOW_TOKENS one after the other; one for an empty text."""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        token_ids, offsets = encoding.ids, encoding.offsets
        starts = list(range(0, max(1, len(token_ids)), WINDOW_TOKENS))
        if len(starts) > 1 and len(token_ids) - starts[-1] < LEAST_TOKENS:
            starts.pop()
        windows = []
        for start, end in zip(starts, [*starts[1:], len(token_ids)], strict=True):
            part = text[offsets[start][0] : offsets[end - 1][1]] if token_ids else text
            windows.append(TextWindow(part, (self._around[0], *token_ids[start:end], self._around[1])))
        return windows

    def vectors(self, windows: Sequence[TextWindow]) -> NDArray[np.float32]:
        """[N, (USED_LAYERS + 1) * H]: means over tokens of the last layers, and the maxima of the last."""
        by_length: dict[int, list[int]] = {}
        for index, window in enumerate(windows):
            by_length.setdefault(len(window.token_ids), []).append(index)
        found: dict[int, NDArray[np.float32]] = {}
        for indices in by_length.values():
            token_ids = np.array([windows[index].token_ids for index in indices], np.int64)
            for index, vector in zip(indices, self._encode(token_ids), strict=True):
                found[index] = vector
        return np.stack([found[index] for index in range(len(windows))])

    def _encode(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        request = self._model.create_infer_request()
        result = request.infer([token_ids, np.ones_like(token_ids), np.zeros_like(token_ids)])
        layers = [np.asarray(result[output]) for output in range(USED_LAYERS)]  # [B, T, H], the last layer first
        return np.concatenate([*(layer.mean(axis=1) for layer in layers), layers[0].max(axis=1)], axis=1)


def _compile(graph: Path, threads: int) -> ov.CompiledModel:
    """The encoder with its last layers as outputs, the last one first."""
    core = ov.Core()
    model = core.read_model(str(graph))
    norms = [node for node in model.get_ordered_ops() if node.get_type_name() == "MVN"]
    # each layer has two norms, the second is its end: normalised, scaled, shifted
    ends: list[Any] = [_next(_next(norm)) for norm in reversed(norms[::2])]
    model.add_outputs([end.output(0) for end in ends[1:USED_LAYERS]])
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": threads}
    return core.compile_model(model, "CPU", settings)


def _next(node: Any) -> Any:
    (target,) = node.output(0).get_target_inputs()
    return target.get_node()
