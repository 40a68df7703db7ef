"""The ONNX graph of a decoder computes what its GGUF file says: rows of several lengths, in chunks, linear caches."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from headrace.core.errors import InvalidRequest
from headrace.models.gguf_file import GgufFile
from headrace.models.gguf_forward import GgufForward
from headrace.models.onnx_decoder import export_onnx

Write = Callable[..., Path]

SLOTS = 24
PROMPTS = [
    row[:length].tolist()
    for row, length in zip(np.random.default_rng(3).integers(3, 259, (3, 12)), (12, 5, 8), strict=True)
]


class Decoder:
    """Runs the graph step by step and keeps the caches."""

    def __init__(self, path: Path, num_rows: int) -> None:
        self._evaluator = ReferenceEvaluator(str(path))
        bare = onnx.load(path, load_external_data=False).graph
        shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in bare.input}
        self._caches = {
            name: np.zeros((num_rows, *shape[1:]), np.float32)
            for name, shape in shapes.items()
            if name.startswith("past_")
        }
        self._outputs = [each.name for each in bare.output]
        self._past = np.zeros(num_rows, np.int64)

    def step(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """The rows' new tokens in, the logits of each row's last one out [B, V]."""
        longest = max(map(len, rows))
        ids = np.array([[*row, *[0] * (longest - len(row))] for row in rows])
        places = self._past[:, None] + np.arange(longest)
        lengths = np.array([len(row) for row in rows])
        feeds = {
            "input_ids": ids,
            "positions": places,
            "write_at": self._past,
            "last": lengths - 1,
            "mask": np.arange(SLOTS)[None, None, None, :] <= places[:, None, :, None],
        }
        outputs = dict(zip(self._outputs, self._evaluator.run(None, feeds | self._caches), strict=True))
        self._caches = {name: outputs[name.replace("past_", "present_")] for name in self._caches}
        self._past = self._past + lengths
        return np.asarray(outputs["logits"])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_graph_computes_what_the_file_says(tmp_path: Path, write_gguf: Write, architecture: str) -> None:
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf", architecture))
    export_onnx(file, tmp_path / "tiny.onnx", SLOTS)
    onnx.checker.check_model(str(tmp_path / "tiny.onnx"))
    expected, decoder = GgufForward(file), Decoder(tmp_path / "tiny.onnx", len(PROMPTS))
    known: list[list[int]] = [[] for _ in PROMPTS]
    steps = [[prompt[:4] for prompt in PROMPTS], [prompt[4:] for prompt in PROMPTS], *[None] * 3]
    logits = np.zeros((len(PROMPTS), 1))
    for rows in steps:
        new = rows or [[int(each)] for each in logits.argmax(axis=1)]
        logits = decoder.step(new)
        for index, row in enumerate(new):
            known[index] += row
            whole = expected.logits(np.array([known[index]]))[0, -1]
            assert np.abs(logits[index] - whole).max() <= 1e-4 * np.abs(whole).max()


def test_a_file_exported_again_is_the_same(tmp_path: Path, write_gguf: Write) -> None:
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf"))
    sizes = []
    for _ in range(2):
        export_onnx(file, tmp_path / "tiny.onnx", SLOTS)
        sizes.append((tmp_path / "tiny.onnx.weights").stat().st_size)
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize("slots", [0, 257])
def test_a_cache_over_the_context_is_refused(tmp_path: Path, write_gguf: Write, slots: int) -> None:
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf"))
    with pytest.raises(InvalidRequest, match=f"a cache of {slots} tokens for a context of 256"):
        export_onnx(file, tmp_path / "tiny.onnx", slots)


def test_another_architecture_is_refused(tmp_path: Path, write_gguf: Write) -> None:
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf"))
    file.__dict__["architecture"] = "mamba"
    with pytest.raises(InvalidRequest, match="no ONNX graph is made of mamba"):
        export_onnx(file, tmp_path / "tiny.onnx", SLOTS)
