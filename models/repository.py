"""The read side of the model repository: installed models and their files. Never writes.

A model is a folder of its name under <home>/models with a model.toml; a folder without one is not a model (a
half-written one never gets its model.toml).
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import EngineNotReady, ModelNotFound
from headrace.core.model import ModelInfo


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """An installed model. Paths are absolute; `chat_template` is Jinja source, '' where the model has none."""

    info: ModelInfo
    folder: Path
    source: str
    license: str
    chat_template: str

    @property
    def graph(self) -> Path:
        """OpenVINO IR (its .bin beside it)."""
        return self.folder / "openvino_model.xml"

    @property
    def tokenizer(self) -> Path:
        """The file that the `tokenizers` library reads."""
        return self.folder / "tokenizer.json"


class Repository:
    """Installed models under a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "models"

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob("*/model.toml"))

    def folder(self, name: str) -> Path:
        """Raises ModelNotFound, naming what is installed."""
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
            return ModelEntry(info, folder, data["source"], data["license"], chat_template)
        except (ValueError, KeyError) as error:  # no TOML, no UTF-8, or not all of it
            raise EngineNotReady(
                f"model {name!r} is damaged (model.toml): remove it and add it again", field="model"
            ) from error
