"""Tiny BERTs with random weights, and a suite in this process that serves one of them beside the reference decoder."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from headrace.chassis.config import load_settings
from headrace.models import bert_forward, reference
from headrace.models.add import add
from headrace.models.reference import byte_letters
from headrace.standalone.services import Suite
from headrace.standalone.single import running

HIDDEN, LAYERS, HEADS, CONTEXT, EPSILON = 32, 2, 4, 128, 1e-12
ANY_PORT = "127.0.0.1:0"


def weights_of(num_labels: int, seed: int = 7) -> dict[str, np.ndarray]:
    """By their names in BertModel, with a head of that many labels."""
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def put(name: str, *shape: int) -> None:
        centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        weights[name] = (centre + random.normal(size=shape) / 4).astype(np.float32)

    def dense(name: str, outputs: int, inputs: int) -> None:
        put(f"{name}.weight", outputs, inputs)
        put(f"{name}.bias", outputs)

    def norm(name: str) -> None:
        put(f"{name}.weight", HIDDEN)
        put(f"{name}.bias", HIDDEN)

    for name, size in (("word", 300), ("position", CONTEXT), ("token_type", 2)):
        put(f"embeddings.{name}_embeddings.weight", size, HIDDEN)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            dense(prefix + part, HIDDEN, HIDDEN)
        dense(f"{prefix}intermediate.dense", 2 * HIDDEN, HIDDEN)
        dense(f"{prefix}output.dense", HIDDEN, 2 * HIDDEN)
        norm(f"{prefix}attention.output.LayerNorm")
        norm(f"{prefix}output.LayerNorm")
    if num_labels:
        dense("pooler.dense", HIDDEN, HIDDEN)
        dense("classifier", num_labels, HIDDEN)
    return weights


def write_bert(folder: Path, labels: tuple[str, ...]) -> Path:
    """A source as a hub has it: bytes are tokens 2.., [CLS] is 0 and [SEP] 1."""
    folder.mkdir(parents=True)
    save_file(weights_of(len(labels)), folder / "model.safetensors")
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "layer_norm_eps": EPSILON,
        "vocab_size": 300,
        "max_position_embeddings": CONTEXT,
        "id2label": {str(index): label for index, label in enumerate(labels)},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    vocabulary = {"[CLS]": 0, "[SEP]": 1} | {letter: 2 + byte for byte, letter in byte_letters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed: `tiny` gives vectors, `moods` has three labels, `judge` one score."""
    home = tmp_path_factory.mktemp("encoders")
    reference.install(home)
    for name, labels in (("tiny", ()), ("moods", ("sad", "calm", "glad")), ("judge", ("relevance",))):
        source = write_bert(home / "sources" / name, labels)
        add(home, str(source), lambda stage, done: None, name=name)
    return home


@pytest.fixture
def suite(home: Path) -> Callable[..., Any]:
    """`suite("tiny", batch_rows=4)` runs a suite with that encoder, the encoder's settings as given."""

    @asynccontextmanager
    async def start(model: str, preprocess: str = "inline", **encoder: Any) -> AsyncIterator[Suite]:
        overrides: dict[str, dict[str, Any]] = {
            "models": {"home": home},
            "gateway": {"listen": ANY_PORT, "preprocess": preprocess},
            "preprocess": {"listen": ANY_PORT},
            "scheduler": {"listen": ANY_PORT},
            "executor": {"listen": ANY_PORT, "engine": "reference", "models": (reference.NAME,)},
            "encoder": {"listen": ANY_PORT, "model": model, "threads": 1, **encoder},
        }
        async with running(load_settings(None, overrides)) as serving:
            yield serving

    return start


@pytest.fixture(scope="session")
def expected() -> Callable[..., np.ndarray]:
    """The vector of a text, of length 1, by the forward pass in numpy; pooled by mean, cls or last."""
    weights = weights_of(0)

    def vector(text: str, pooling: str = "mean") -> np.ndarray:
        ids = [0, *(2 + byte for byte in text.encode()), 1]
        hidden = bert_forward.hidden_states(weights, ids, LAYERS, HEADS, EPSILON)
        pooled = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        return pooled / np.linalg.norm(pooled)

    return vector
