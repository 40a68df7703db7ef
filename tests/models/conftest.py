"""Small models with random weights, written as a source would hold them; and the real ones, installed once."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from headrace.chassis.config import default_home
from headrace.models.add import add as add_model
from headrace.models.reference import byte_letters, byte_tokenizer
from headrace.models.repository import ModelEntry

HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 4, 2
Float32 = NDArray[np.float32]


def _write_gguf(path: Path, architecture: str = "llama", weights: str = "Q4_1", seed: int = 7) -> Path:
    """A decoder of the Llama family with a byte-level tokenizer and one merge."""
    random = np.random.default_rng(seed)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters().values(), "th"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_key_length(HIDDEN // HEADS)
    writer.add_value_length(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_license("mit")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if architecture == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")
    kind = gguf.GGMLQuantizationType[weights]

    def matrix(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType = kind) -> None:
        # An offset leaves each group's minimum between two steps, which is what a rounded zero point loses.
        data = (random.normal(size=(rows, columns)) / np.sqrt(columns) * 2).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)

    def vector(name: str, size: int, around: float) -> None:
        writer.add_tensor(name, (around + random.normal(size=size) / 10).astype(np.float32))

    head = HIDDEN // HEADS
    matrix("token_embd.weight", len(tokens), HIDDEN, gguf.GGMLQuantizationType.Q8_0)
    vector("output_norm.weight", HIDDEN, 1)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        sizes = {"q": HEADS * head, "k": KV_HEADS * head, "v": KV_HEADS * head}
        for part, size in sizes.items():
            matrix(f"{prefix}attn_{part}.weight", size, HIDDEN)
            if architecture == "qwen2":
                vector(f"{prefix}attn_{part}.bias", size, 0)
            if architecture == "qwen3" and part != "v":
                vector(f"{prefix}attn_{part}_norm.weight", head, 1)
        matrix(f"{prefix}attn_output.weight", HIDDEN, HEADS * head)
        matrix(f"{prefix}ffn_gate.weight", FEED_FORWARD, HIDDEN)
        matrix(f"{prefix}ffn_up.weight", FEED_FORWARD, HIDDEN)
        matrix(f"{prefix}ffn_down.weight", HIDDEN, FEED_FORWARD)
        vector(f"{prefix}attn_norm.weight", HIDDEN, 1)
        vector(f"{prefix}ffn_norm.weight", HIDDEN, 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_bert(folder: Path, prefix: str = "", seed: int = 7) -> Path:
    """A BERT encoder in safetensors with config and tokenizer; `prefix` as heads put before the encoder's names."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    tensors: dict[str, Float32] = {}

    def add(name: str, *shape: int) -> None:
        scale = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        tensors[prefix + name] = (scale + random.normal(size=shape) / 4).astype(np.float32)

    for name, size in (("word", 300), ("position", 64), ("token_type", 2)):
        add(f"embeddings.{name}_embeddings.weight", size, HIDDEN)
    dense = {
        "attention.self.query": (HIDDEN, HIDDEN),
        "attention.self.key": (HIDDEN, HIDDEN),
        "attention.self.value": (HIDDEN, HIDDEN),
        "attention.output.dense": (HIDDEN, HIDDEN),
        "intermediate.dense": (FEED_FORWARD, HIDDEN),
        "output.dense": (HIDDEN, FEED_FORWARD),
    }
    for layer in range(LAYERS):
        for name, shape in dense.items():
            add(f"encoder.layer.{layer}.{name}.weight", *shape)
            add(f"encoder.layer.{layer}.{name}.bias", shape[0])
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            add(f"encoder.layer.{layer}.{name}.weight", HIDDEN)
            add(f"encoder.layer.{layer}.{name}.bias", HIDDEN)
    add("embeddings.LayerNorm.weight", HIDDEN)
    add("embeddings.LayerNorm.bias", HIDDEN)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "layer_norm_eps": 1e-12,
        "vocab_size": 300,
        "max_position_embeddings": 64,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# Tiny\n", encoding="utf-8")
    vocabulary = {"[CLS]": 0, "[SEP]": 1} | {letter: 2 + byte for byte, letter in byte_letters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    tokenizer.enable_padding(length=40)
    tokenizer.enable_truncation(40)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _write_decoder_texts(folder: Path) -> Path:
    """A safetensors decoder's folder, but for weights that mean anything."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 128,
        "vocab_size": 257,
        "eos_token_id": 256,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def silent(stage: str, done: float | None) -> None:
    """A progress that nobody watches."""


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    return _write_gguf


@pytest.fixture(scope="session")
def write_bert() -> Callable[..., Path]:
    return _write_bert


@pytest.fixture(scope="session")
def write_decoder_texts() -> Callable[..., Path]:
    return _write_decoder_texts


@pytest.fixture(scope="session")
def add() -> Callable[..., ModelEntry]:
    """Adds a source to a home, with no progress; (home, source, name=, force=) -> the entry."""
    return lambda home, source, **options: add_model(home, str(source), silent, **options).entry


@pytest.fixture(scope="session")
def installed(add: Callable[..., ModelEntry]) -> Callable[[str], ModelEntry]:
    """A real model of the catalogue, from the default home; added there if it is missing."""
    return lambda name: add(default_home(), name)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, add: Callable[..., ModelEntry]) -> ModelEntry:
    """A converted Llama of random weights. Nobody may write to it."""
    home = tmp_path_factory.mktemp("home")
    return add(home, _write_gguf(home / "tiny.gguf"))
