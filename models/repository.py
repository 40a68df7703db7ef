"""The read side of the model repository: installed models and their files. Never writes.

A model is a folder of its name under <home>/models with a model.toml; a folder without one is not a model (a
half-written one never gets its model.toml).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import EngineNotReady, ModelNotFound
from headrace.core.model import ModelInfo
from headrace.core.request import Precision


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """An installed model. Paths are absolute; `chat_template` is Jinja source, '' where the model has none.

    `precision` is that of `graph`: the model's own, or the one of its `variants` that was asked for.
    """

    info: ModelInfo
    folder: Path
    source: str
    license: str
    chat_template: str
    precision: Precision = Precision.FP32
    variants: tuple[Precision, ...] = ()
    variant_folder: str = ""

    @property
    def graph(self) -> Path:
        """OpenVINO IR (its .bin beside it)."""
        return self.folder / self.variant_folder / "openvino_model.xml"

    @property
    def checkpoint(self) -> Path:
        """What transformers wrote, for the torch engine; there where the model was added as a checkpoint."""
        return self.folder / "checkpoint"

    def variant(self, precision: Precision) -> "ModelEntry":
        """The same model with its graph of another precision. Raises EngineNotReady where it has none."""
        if precision is self.precision:
            return self
        name = precision.name.lower()
        if precision not in self.variants:
            there = ", ".join(each.name.lower() for each in (self.precision, *self.variants))
            raise EngineNotReady(
                f"model {self.info.name!r} is not there in {name}; run: "
                f"headrace models add {self.info.name} --precision {name}",
                field="executor.precision",
                limit=there,
            )
        return replace(self, precision=precision, variant_folder=name)

    @property
    def tokenizer(self) -> Path:
        """The file that the `tokenizers` library reads."""
        return self.folder / "tokenizer.json"


MAX_NAME_BYTES = 255
"""A file system knows no longer ones."""


class Repository:
    """Installed models under a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "models"

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob("*/model.toml"))

    def folder(self, name: str) -> Path:
        """Raises ModelNotFound, naming what is installed."""
        if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            raise ModelNotFound(f"no model has a name of {len(name)} characters", field="model")
        folder = self.root / name
        if not name or "/" in name or name.startswith(".") or not (folder / "model.toml").is_file():
            known = ", ".join(self.names()) or "none"
            raise ModelNotFound(f"no model {name!r}; installed: {known}", field="model", limit=known)
        return folder

    def get(self, name: str) -> ModelEntry:
        """Raises ModelNotFound as `folder` does, EngineNotReady if its model.toml is damaged."""
        folder = self.folder(name)
        template = folder / "chat_template.jinja"
        try:
            data = tomllib.loads((folder / "model.toml").read_text(encoding="utf-8"))
            info = ModelInfo(
                name=name,
                kind=data["kind"],
                digest=data["digest"],
                context_tokens=data["context_tokens"],
                vocab_size=data["vocab_size"],
                eos_token_ids=tuple(data["eos_token_ids"]),
                labels=tuple(data.get("labels", ())),
            )
            chat_template = template.read_text(encoding="utf-8") if template.exists() else ""
            return ModelEntry(
                info,
                folder,
                data["source"],
                data["license"],
                chat_template,
                _precision(data),
                tuple(Precision[variant.upper()] for variant in data.get("variants", ())),
            )
        except (ValueError, KeyError) as error:  # no TOML, no UTF-8, or not all of it
            raise EngineNotReady(
                f"model {name!r} is damaged (model.toml): remove it and add it again", field="model"
            ) from error


def _precision(data: Mapping[str, Any]) -> Precision:
    """Models of before this was written down: decoders were made in eight bits, encoders are whole."""
    return Precision[data.get("precision", "int8" if data["kind"] == "decoder" else "fp32").upper()]
