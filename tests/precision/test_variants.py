"""A model's variants: made from its source, checked against it, stored beside its own graph, all of it or nothing."""

import tomllib
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.core.errors import EngineFault, EngineNotReady, HeadraceError, InvalidRequest
from headrace.core.request import Precision
from headrace.models import precisions
from headrace.models.add import add
from headrace.models.gguf_file import GgufFile
from headrace.models.gguf_forward import GgufForward
from headrace.models.graph import Graph
from headrace.models.manifest import read_files, verify
from headrace.models.repository import ModelEntry, Repository

PROBES = np.random.default_rng(1).integers(3, 259, (2, 12))


def silent(stage: str, done: float | None) -> None:
    """A progress that nobody watches."""


def test_each_precision_computes_what_the_source_does(tiny: ModelEntry, tiny_gguf: Path) -> None:
    expected = GgufForward(GgufFile(tiny_gguf)).logits(PROBES)
    apart = {}
    for precision in (tiny.precision, *tiny.variants):
        actual = np.stack(Graph(tiny.variant(precision).graph).outputs(PROBES.tolist()))
        apart[precision] = float(np.abs(actual - expected).max())
    assert apart.keys() == {Precision.INT8, Precision.FP32, Precision.BF16}
    assert apart[Precision.FP32] < 1e-3 < apart[Precision.BF16] < 0.2
    assert apart[Precision.BF16] < apart[Precision.INT8] < 1.0


def test_a_graph_is_stored_in_the_precision_of_its_name(tiny: ModelEntry) -> None:
    sizes = {}
    for precision in (tiny.precision, *tiny.variants):
        graph = tiny.variant(precision).graph
        assert precisions.precision_of(graph) is precision
        sizes[precision] = graph.with_suffix(".bin").stat().st_size
    assert sizes[Precision.INT8] < sizes[Precision.BF16] < sizes[Precision.FP32]


def test_how_each_was_checked_is_kept(tiny: ModelEntry) -> None:
    data = tomllib.loads((tiny.folder / "model.toml").read_text(encoding="utf-8"))
    assert data["precision"] == "int8"
    assert data["variants"].keys() == {"fp32", "bf16"}
    assert all(check["least_correlation"] > 0.999 for check in data["variants"].values())


def test_bfloat16_is_the_nearest_and_ties_go_to_even() -> None:
    values = np.array([[1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -3.14159]], np.float32)
    model = ov.Model([op.result(precisions.in_bf16(values))], [], "rounded")
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert compiled([])[0].tolist() == [[1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -3.140625]]


def test_a_variant_is_added_to_what_is_there(tmp_path: Path, tiny_gguf: Path) -> None:
    first = add(tmp_path, str(tiny_gguf), silent).entry
    own = {name: (first.folder / name).stat().st_ino for name in read_files(first.folder)}
    assert first.variants == ()
    with pytest.raises(EngineNotReady, match="headrace models add tiny --precision bf16"):
        first.variant(Precision.BF16)
    added = add(tmp_path, str(tiny_gguf), silent, precisions=[Precision.BF16])
    assert added.changed
    assert added.entry.variants == (Precision.BF16,)
    assert {name: (first.folder / name).stat().st_ino for name in own} == own  # not made again
    verify(added.entry)
    assert not add(tmp_path, str(tiny_gguf), silent, precisions=[Precision.BF16, Precision.INT8]).changed
    more = add(tmp_path, str(tiny_gguf), silent, precisions=[Precision.FP32]).entry
    assert more.variants == (Precision.BF16, Precision.FP32)
    verify(more)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_model_that_is_made_again_keeps_its_variants(tmp_path: Path, tiny_gguf: Path, damaged: bool) -> None:
    first = add(tmp_path, str(tiny_gguf), silent, precisions=[Precision.BF16]).entry
    if damaged:
        first.graph.with_suffix(".bin").write_bytes(b"damage")
    again = add(tmp_path, str(tiny_gguf), silent, force=not damaged)
    assert again.changed
    assert again.entry.variants == (Precision.BF16,)
    verify(again.entry)


def test_a_variant_that_is_not_its_source_leaves_the_model_as_it_was(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = add(tmp_path, str(tiny_gguf), silent).entry
    before = (first.folder / "model.toml").read_bytes()
    monkeypatch.setattr(precisions, "in_bf16", lambda weights: op.constant(weights * 0.5 + 0.2).output(0))
    with pytest.raises(EngineFault, match="does not compute what its source does"):
        add(tmp_path, str(tiny_gguf), silent, precisions=[Precision.BF16])
    assert Repository(tmp_path).get("tiny") == first
    assert (first.folder / "model.toml").read_bytes() == before
    assert not (first.folder / "bf16").exists()


def test_what_has_no_variants_says_so(tmp_path: Path, tiny: ModelEntry, tiny_gguf: Path) -> None:
    with pytest.raises(InvalidRequest, match="no variant is made in fp16"):
        add(tmp_path, str(tiny_gguf), silent, precisions=[Precision.FP16])
    graph = tmp_path / "graph"
    graph.mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json"):
        (graph / name).write_bytes((tiny.folder / name).read_bytes())
    (graph / "config.json").write_text('{"max_position_embeddings": 256, "vocab_size": 260}', encoding="utf-8")
    with pytest.raises(InvalidRequest, match="variants are made of decoders"):
        add(tmp_path, str(graph), silent, precisions=[Precision.BF16])
    assert Repository(tmp_path).names() == []


def test_a_damaged_variant_is_named_and_others_are_served(tmp_path: Path, tiny_gguf: Path) -> None:
    entry = add(tmp_path, str(tiny_gguf), silent, precisions=[Precision.BF16]).entry
    with (entry.folder / "bf16" / "openvino_model.bin").open("r+b") as file:
        file.write(b"other")
    verify(entry, served_only=True)
    for call in (lambda: verify(entry), lambda: verify(entry.variant(Precision.BF16), served_only=True)):
        with pytest.raises(HeadraceError, match=r"damaged \(bf16/openvino_model.bin\)"):
            call()


def test_the_command_takes_precisions_and_lists_them(tmp_path: Path, tiny_gguf: Path) -> None:
    runner = CliRunner()
    words = ["models", "add", str(tiny_gguf), "--home", str(tmp_path), "--precision", "fp32,bf16"]
    assert runner.invoke(app, words).exit_code == 0
    listed = runner.invoke(app, ["models", "list", "--home", str(tmp_path)], env={"COLUMNS": "200"})
    assert "int8, fp32, bf16" in listed.stdout
    wrong = runner.invoke(app, [*words[:-1], "fp8"])
    assert isinstance(wrong.exception, InvalidRequest)
    assert "'fp8' is no precision" in wrong.exception.message
