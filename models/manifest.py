"""model.toml, the record that makes a folder a model: written last, with the checksums of the files beside it."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from headrace.core.errors import EngineNotReady
from headrace.models.repository import ModelEntry

FILE_NAME = "model.toml"
CONVERTER = 2  # counts up when conversion changes what it stores: a model of an older one is made again by `add`


@dataclass(frozen=True, slots=True)
class Manifest:
    """What model.toml says. `digest` is the SHA-256 of the source, `check` how the conversion was compared with it,
    `labels` those of a classification head, `precision` that of its own graph; `variants` are the checks of the others
    by the names of their precisions."""

    kind: str
    digest: str
    context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    source: str
    license: str
    weights: str
    check: Mapping[str, str | int | float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    precision: str = "fp32"
    variants: Mapping[str, Mapping[str, str | int | float]] = field(default_factory=dict)
    converter: int = CONVERTER


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path, names: list[str]) -> str:
    """SHA-256 over the named files' names and digests; the order of `names` does not matter."""
    lines = (f"{file_digest(folder / name)}  {name}\n" for name in sorted(names))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def render(manifest: Manifest, files: Mapping[str, str]) -> str:
    """The text of model.toml; `files` maps names to SHA-256."""
    tables = {"check": manifest.check}
    tables |= {f"variants.{name}": check for name, check in manifest.variants.items()}
    tables["files"] = dict(sorted(files.items()))
    fields = {
        name: getattr(manifest, name) for name in manifest.__dataclass_fields__ if name not in ("check", "variants")
    }
    lines = [f"{name} = {_value(value)}" for name, value in fields.items()]
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{_value(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: str | int | float | tuple[int | str, ...]) -> str:
    # A JSON value of these types is the same TOML value, save DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def is_current(folder: Path) -> bool:
    """Whether this release's conversion made the model."""
    data = tomllib.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    return bool(data.get("converter", 1) == CONVERTER)


def read_manifest(entry: ModelEntry) -> Manifest:
    """What model.toml says of an installed model."""
    data = tomllib.loads((entry.folder / FILE_NAME).read_text(encoding="utf-8"))
    known = {name: value for name, value in data.items() if name in Manifest.__dataclass_fields__}
    lists = {name: tuple(known.get(name, ())) for name in ("eos_token_ids", "labels")}
    return Manifest(**{**known, **lists, "precision": entry.precision.name.lower()})


def read_files(folder: Path) -> dict[str, str]:
    """The checksums that model.toml records, by file name. Raises EngineNotReady for a name outside the folder."""
    files = dict(tomllib.loads((folder / FILE_NAME).read_text(encoding="utf-8")).get("files", {}))
    for name in files:
        if not is_confined(name):
            raise EngineNotReady(f"{folder / FILE_NAME} names a file outside its folder: {name!r}", field="model")
    return files


def is_confined(name: str) -> bool:
    """Whether a relative path with forward slashes stays below where it begins."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and not {"\\", "\0"} & set(name)


def verify(entry: ModelEntry, *, served_only: bool = False) -> None:
    """Reads every stored file and compares it with its checksum; with `served_only` other precisions' are left out.
    Raises EngineNotReady that names the damaged ones."""
    files = read_files(entry.folder)
    if served_only:
        own = entry.graph.relative_to(entry.folder).parent
        graphs = {entry.graph.name, entry.graph.with_suffix(".bin").name}
        files = {
            name: each for name, each in files.items() if Path(name).name not in graphs or Path(name).parent == own
        }
    broken = [name for name in files if not (entry.folder / name).is_file()]
    broken += [
        name for name, digest in files.items() if name not in broken and file_digest(entry.folder / name) != digest
    ]
    if broken:
        name = entry.info.name
        raise EngineNotReady(
            f"model {name!r} is damaged ({', '.join(broken)}): remove it and add it again from {entry.source}",
            field="model",
        )
