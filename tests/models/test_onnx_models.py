"""An ONNX encoder is read by OpenVINO and compared with what ONNX Runtime, here a stand-in for it, computes of it."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import EngineFault, InvalidRequest
from headrace.models import onnx_source
from headrace.models.repository import ModelEntry

Write = Callable[..., Path]
Add = Callable[..., ModelEntry]

FLOAT, INT64 = 1, 7
WEIGHTS = np.random.default_rng(3).normal(size=(300, 16)).astype(np.float32)


def _field(number: int, value: int | bytes | str) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _node(kind: str, inputs: list[str], output: str, attribute: bytes = b"") -> bytes:
    return b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, kind) + attribute


def _port(name: str, kind: int, sizes: list[int]) -> bytes:
    dimensions = b"".join(_field(1, _field(1, size) if size else _field(2, "n")) for size in sizes)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, dimensions)))


def _tensor(name: str, array: np.ndarray) -> bytes:
    kind = FLOAT if array.dtype == np.float32 else INT64
    sizes = b"".join(_field(1, size) for size in array.shape)
    return sizes + _field(2, kind) + _field(8, name) + _field(9, array.tobytes())


def write_onnx(path: Path, inputs: tuple[str, ...] = ("input_ids", "attention_mask")) -> Path:
    """An encoder (onnx.proto's ModelProto, opset 13) that looks each token's row up and blanks masked ones."""
    to_float = _field(5, _field(1, "to") + _field(3, FLOAT) + _field(20, 2))
    graph = b"".join(
        (
            _field(1, _node("Gather", ["words", "input_ids"], "rows")),
            _field(1, _node("Cast", ["attention_mask"], "seen", to_float)),
            _field(1, _node("Unsqueeze", ["seen", "last"], "column")),
            _field(1, _node("Mul", ["rows", "column"], "last_hidden_state")),
            _field(2, "tiny"),
            _field(5, _tensor("words", WEIGHTS)),
            _field(5, _tensor("last", np.array([2], np.int64))),
            *(_field(11, _port(name, INT64, [0, 0])) for name in inputs),
            _field(12, _port("last_hidden_state", FLOAT, [0, 0, WEIGHTS.shape[1]])),
        )
    )
    path.write_bytes(_field(1, 8) + _field(7, graph) + _field(8, _field(2, 13)))
    return path


@pytest.fixture
def source(tmp_path: Path, write_bert: Write) -> Path:
    folder = write_bert(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    write_onnx(folder / "model.onnx")
    return folder


@pytest.fixture
def runtime(tmp_path: Path) -> Callable[[np.ndarray], None]:
    """Makes an environment whose Python looks rows of the given weights up, whatever script it is given."""

    def make(weights: np.ndarray) -> None:
        folder = tmp_path / "onnx-runtime"
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        np.save(folder / "weights.npy", weights)
        (folder / "program.py").write_text(
            "import json, sys, numpy as np\n"
            "script, model, work = sys.argv[1:]\n"
            "assert script.endswith('onnx_outputs.py') and model.endswith('model.onnx')\n"
            f"weights = np.load({str(folder / 'weights.npy')!r})\n"
            "probes = json.load(open(work + '/probes.json'))\n"
            "np.savez(work + '/outputs.npz', **{str(i): weights[probe] for i, probe in enumerate(probes)})\n"
        )
        python = folder / "bin/python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/program.py" "$@"\n')
        python.chmod(0o755)
        (folder / "headrace-requirements.txt").write_text("\n".join(onnx_source.REQUIREMENTS) + "\n")

    return make


def test_an_encoder_that_agrees_is_stored_and_one_that_does_not_is_refused(
    tmp_path: Path, source: Path, runtime: Callable[[np.ndarray], None], add: Add
) -> None:
    runtime(WEIGHTS[::-1])
    with pytest.raises(EngineFault, match="does not compute what its source does"):
        add(tmp_path, source)
    runtime(WEIGHTS)
    entry = add(tmp_path, source)
    assert (entry.info.kind, entry.info.context_tokens, entry.info.vocab_size) == ("encoder", 64, 300)
    assert "ONNX Runtime" in (entry.folder / "model.toml").read_text()


def test_a_decoder_is_refused_with_what_to_add_instead(tmp_path: Path, source: Path, add: Add) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(InvalidRequest, match="safetensors, GGUF or OpenVINO IR instead"):
        add(tmp_path, source)


def test_a_file_that_is_no_onnx_is_one_line(tmp_path: Path, source: Path, add: Add) -> None:
    (source / "model.onnx").write_bytes(struct.pack("<4I", 1, 2, 3, 4))
    with pytest.raises(InvalidRequest, match=r"^OpenVINO cannot read model\.onnx: ") as caught:
        add(tmp_path, source)
    assert "\n" not in caught.value.message
