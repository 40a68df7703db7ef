"""BERT encoders are built from their weights and agree with a forward pass written apart."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.core.errors import EngineFault, InvalidRequest
from headrace.models import bert_graph, check
from headrace.models.repository import ModelEntry

Write = Callable[..., Path]
Add = Callable[..., ModelEntry]


def vectors(entry: ModelEntry, texts: list[str], length: int = 0) -> NDArray[np.float32]:
    """Mean-pooled, of unit length; padded to `length`."""
    tokenizer = Tokenizer.from_file(str(entry.tokenizer))
    tokenizer.enable_padding(length=length or None)
    encodings = tokenizer.encode_batch(texts)
    ids, mask = (np.array([getattr(each, name) for each in encodings]) for name in ("ids", "attention_mask"))
    model = ov.Core().compile_model(entry.graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    hidden = model(feeds)["last_hidden_state"]
    pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    unit: NDArray[np.float32] = pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)
    return unit


def test_minilm_knows_kittens_from_stock(installed: Callable[[str], ModelEntry]) -> None:
    entry = installed("minilm")
    assert (entry.info.kind, entry.info.context_tokens, entry.info.vocab_size) == ("encoder", 256, 30522)
    cat, kitten, stock = vectors(
        entry, ["The cat sits outside", "A kitten is sitting outdoors", "The stock market fell today"]
    )
    assert cat @ kitten > 0.5 > 0.2 > cat @ stock


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_tiny_one_is_added_and_padding_changes_nothing(
    tmp_path: Path, write_bert: Write, add: Add, prefix: str
) -> None:
    entry = add(tmp_path, write_bert(tmp_path / "tiny", prefix))
    assert (entry.info.kind, entry.info.context_tokens, entry.license) == ("encoder", 64, "mit")
    texts = ["one", "another text", "x"]
    np.testing.assert_allclose(vectors(entry, texts), vectors(entry, texts, 50), atol=1e-5)
    tokenizer = Tokenizer.from_file(str(entry.tokenizer))
    assert len(tokenizer.encode("x").ids) == 3  # no padding
    assert len(tokenizer.encode("x" * 100).ids) == 102  # no truncation


def test_the_context_is_the_sentence_models_own(tmp_path: Path, write_bert: Write, add: Add) -> None:
    source = write_bert(tmp_path / "tiny")
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 48}')
    assert add(tmp_path, source).info.context_tokens == 48


def test_other_pooling_is_refused(tmp_path: Path, write_bert: Write, add: Add) -> None:
    source = write_bert(tmp_path / "tiny")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    with pytest.raises(InvalidRequest, match="mean of its tokens"):
        add(tmp_path, source)


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}])
def test_variants_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="only BERTs"):
        bert_graph.BertShape.of({"num_hidden_layers": 1, "num_attention_heads": 1} | change)


def test_missing_weights_are_named(tmp_path: Path, write_bert: Write, add: Add) -> None:
    source = write_bert(tmp_path / "tiny")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(InvalidRequest, match=r"hold no encoder\.layer\.2"):
        add(tmp_path, source)


def test_broken_safetensors_are_said(tmp_path: Path, write_bert: Write, add: Add) -> None:
    source = write_bert(tmp_path / "tiny")
    (source / "model.safetensors").write_bytes(b"\x08" + b"\0" * 40)
    with pytest.raises(InvalidRequest, match="safetensors cannot be read"):
        add(tmp_path, source)


def test_an_ir_folder_is_taken_as_it_is(tmp_path: Path, write_bert: Write, add: Add) -> None:
    source = write_bert(tmp_path / "tiny")
    first = add(tmp_path, source)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (source / name).write_bytes((first.folder / name).read_bytes())
    second = add(tmp_path, source, name="again")
    assert second.info.kind == "encoder"
    assert 'against = "nothing' in (second.folder / "model.toml").read_text().replace('"against"', "against")
    np.testing.assert_allclose(vectors(first, ["a text"]), vectors(second, ["a text"]), atol=1e-6)


OUTPUT = np.random.default_rng(0).normal(size=(2, 5, 40)).astype(np.float32)


def test_agreement_of_equals_is_full() -> None:
    agreement = check.compare(list(OUTPUT), list(OUTPUT), check.EXACT)
    assert agreement.top1 == 1.0
    assert agreement.correlation == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (OUTPUT[::-1], "does not compute what its source does"),
        (OUTPUT * np.nan, "finite"),
        (np.ones_like(OUTPUT), "constant"),
        (np.stack([OUTPUT[0], OUTPUT[0]]), "same outputs for different inputs"),
    ],
)
def test_wrong_outputs_are_refused(actual: NDArray[np.float32], words: str) -> None:
    with pytest.raises(EngineFault, match=words):
        check.compare(list(OUTPUT), list(actual), check.QUANTISED_DECODER)
