"""Adds a decoder's checkpoint as transformers wrote it, for the torch engine: nothing is converted, no code is run."""

import json
import shutil
from pathlib import Path

from headrace.core.errors import InvalidRequest
from headrace.models.convert import copy_texts, decoder_context, eos_token_ids
from headrace.models.manifest import Manifest, folder_digest
from headrace.models.repository import ModelEntry, Repository
from headrace.models.store import Store, check_name

_KEPT = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def install(home: Path, source: Path, name: str) -> ModelEntry:
    """Takes config.json, safetensors, tokenizer.json and chat template of a folder over under `name`.

    Raises InvalidRequest where one of them is missing or damaged.
    """
    files = [path for pattern in _KEPT for path in sorted(source.glob(pattern))]
    names = {path.name for path in files}
    if "config.json" not in names or not any(each.endswith(".safetensors") for each in names):
        raise InvalidRequest(f"{source} is no checkpoint: it wants config.json and *.safetensors", field="source")
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        vocab_size = int(config["vocab_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{source / 'config.json'} cannot be read: {error!r}", field="source") from error
    store = Store(home)
    with store.locked(check_name(name)), store.staged(name) as folder:
        copy_texts(source, folder)
        (folder / "checkpoint").mkdir()
        for path in files:
            shutil.copyfile(path, folder / "checkpoint" / path.name)
        kind = config.get("dtype") or config.get("torch_dtype") or "float32"
        manifest = Manifest(
            kind="decoder",
            digest=folder_digest(source, [path.name for path in files]),
            context_tokens=decoder_context(config),
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids(source, config),
            source=str(source),
            license="",
            weights="as in the source",
            precision=_PRECISIONS.get(str(kind), "fp32"),
        )
        store.publish(name, manifest)
    return Repository(home).get(name)
