"""Variants of models: a small decoder of random weights in GGUF, and smollm2 in every precision in the default home."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.chassis.config import default_home
from headrace.core.request import Precision
from headrace.models.add import add
from headrace.models.reference import byte_letters
from headrace.models.repository import ModelEntry

HIDDEN, FEED_FORWARD, LAYERS, HEADS = 64, 128, 2, 4
ALL = (Precision.FP32, Precision.BF16)


def silent(stage: str, done: float | None) -> None:
    """A progress that nobody watches."""


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers in Q4_1."""
    random = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("source") / "tiny.gguf"
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters().values(), "th"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")

    def matrix(name: str, rows: int, columns: int) -> None:
        data = (random.normal(size=(rows, columns)) / np.sqrt(columns) * 2).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd" else gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(f"{name}.weight", gguf.quantize(data, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", (1 + random.normal(size=HIDDEN) / 10).astype(np.float32))

    matrix("token_embd", len(tokens), HIDDEN)
    norm("output_norm")
    for layer in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", HIDDEN // 2, HIDDEN),
            ("attn_v", HIDDEN // 2, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", FEED_FORWARD, HIDDEN),
            ("ffn_up", FEED_FORWARD, HIDDEN),
            ("ffn_down", HIDDEN, FEED_FORWARD),
        ):
            matrix(f"blk.{layer}.{name}", rows, columns)
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> ModelEntry:
    """It, in every precision. Nobody may write to it."""
    return add(tmp_path_factory.mktemp("home"), str(tiny_gguf), silent, precisions=ALL).entry


@pytest.fixture(scope="session")
def smollm2() -> ModelEntry:
    """The real model; what is missing of it is added."""
    return add(default_home(), "smollm2", silent, precisions=ALL).entry
