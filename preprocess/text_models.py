"""The text side of the installed models: limits, tokenizer, template; loaded at first use and then kept."""

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import EngineNotReady
from headrace.core.model import ModelInfo
from headrace.models.repository import ModelEntry, Repository
from headrace.preprocess.detokenizer import Detokenizer
from headrace.preprocess.template import ChatTemplate
from headrace.preprocess.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TextModel:
    """One model's text side."""

    info: ModelInfo
    tokenizer: Tokenizer
    template: ChatTemplate


class TextModels:
    """Safe to share between threads. A loaded model stays as it was loaded until the process ends."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._loaded: dict[str, TextModel] = {}
        self._loading = threading.Lock()

    def names(self) -> Sequence[str]:
        return self._repository.names()

    def info(self, name: str) -> ModelInfo:
        """Raises ModelNotFound."""
        loaded = self._loaded.get(name)
        return loaded.info if loaded else self._repository.get(name).info

    def text_stream(self, name: str) -> Detokenizer:
        """A new answer's detokenizer. Raises ModelNotFound."""
        return Detokenizer(self.load(name).tokenizer)

    def token_bytes(self, name: str, token_id: int) -> bytes:
        """What one token stands for, which need be no whole character. Raises ModelNotFound."""
        return self.load(name).tokenizer.token_bytes(token_id)

    def loaded(self, name: str) -> TextModel | None:
        """The model if it is in memory; never waits."""
        return self._loaded.get(name)

    def load(self, name: str) -> TextModel:
        """The model, read from disk at first use. Raises ModelNotFound, EngineNotReady where a file is damaged."""
        if loaded := self._loaded.get(name):
            return loaded
        with self._loading:
            return self._loaded.get(name) or self._loaded.setdefault(name, _read(self._repository.get(name)))

    def warm_up(self) -> None:
        """Loads every installed model, so that no first request waits; one that does not load is logged."""
        for name in self.names():
            try:
                self.load(name)
            except Exception:  # whatever is wrong with its files, the others are still good
                log.exception("the text side of model %r does not load", name)


def _read(entry: ModelEntry) -> TextModel:
    try:
        tokenizer = Tokenizer(entry.tokenizer, entry.info.eos_token_ids)
    except Exception as error:  # the library raises nothing more precise
        raise EngineNotReady(
            f"model {entry.info.name!r} is damaged ({entry.tokenizer.name}): remove it and add it again", field="model"
        ) from error
    return TextModel(entry.info, tokenizer, ChatTemplate(entry.chat_template, _special_tokens(entry, tokenizer)))


def _special_tokens(entry: ModelEntry, tokenizer: Tokenizer) -> Mapping[str, str]:
    """What a template may name: as tokenizer_config.json has it, else at least the end-of-sequence token."""
    eos = entry.info.eos_token_ids
    tokens = {"eos_token": tokenizer.token(eos[0])} if eos else {}
    config = entry.folder / "tokenizer_config.json"
    if config.is_file():
        known = json.loads(config.read_text(encoding="utf-8"))
        for name in SPECIAL_TOKENS:
            if value := known.get(name):
                tokens[name] = value["content"] if isinstance(value, dict) else value
    return tokens
