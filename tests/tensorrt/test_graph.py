"""Preparing a graph changes its precision and not what it computes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

from headrace.core.errors import InvalidRequest
from headrace.executor.tensorrt.graph import graph_inputs, prepared, read_graph

IDS = np.array([[1, 2, 3], [7, 49, 0]])


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0], np.float32)


@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-6), ("tf32", 1e-6), ("fp16", 5e-3), ("int8", 5e-2)])
def test_a_prepared_graph_computes_the_same(
    small_model: Callable[..., ModelProto], precision: str, most: float
) -> None:
    whole = run(small_model(), {"ids": IDS})
    found = run(prepared(small_model(), precision), {"ids": IDS})
    assert np.abs(whole).max() > 0.5
    assert np.abs(found - whole).max() <= most


def test_bf16_takes_every_float_and_leaves_ids(small_model: Callable[..., ModelProto]) -> None:
    model = prepared(small_model(), "bf16")
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    assert kinds == {TensorProto.BFLOAT16}
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.INT64
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.BFLOAT16


def test_int8_keeps_products_weights_in_eight_bits_with_a_scale_an_output(
    small_model: Callable[..., ModelProto],
) -> None:
    model = prepared(small_model(), "int8")
    (node,) = (each for each in model.graph.node if each.op_type == "DequantizeLinear")
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    weights, scales = (constants[name] for name in node.input)
    assert (weights.data_type, list(weights.dims)) == (TensorProto.INT8, [16, 8])
    assert (scales.data_type, list(scales.dims)) == (TensorProto.FLOAT16, [8])


def test_the_given_model_is_left_as_it_is(small_model: Callable[..., ModelProto]) -> None:
    model = small_model()
    before = model.SerializeToString()
    prepared(model, "int8")
    assert model.SerializeToString() == before


@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-6), ("int8", 2e-2)])
def test_a_decoder_block_computes_the_same(
    decoder_block: Path, block_feeds: dict[str, np.ndarray], precision: str, most: float
) -> None:
    whole = run(read_graph(decoder_block), block_feeds)
    model = prepared(read_graph(decoder_block), precision)
    if precision == "int8":
        for name, each in block_feeds.items():
            block_feeds[name] = each.astype(np.float16) if each.dtype == np.float32 else each
    assert np.abs(run(model, block_feeds) - whole).max() <= most * np.abs(whole).max()


def test_inputs_are_told_with_their_axes(small_model: Callable[..., ModelProto]) -> None:
    (ids,) = graph_inputs(small_model(axes=("batch", "")))
    assert (ids.name, ids.shape) == ("ids", ("batch", ""))


def test_an_unknown_precision_is_refused(small_model: Callable[..., ModelProto]) -> None:
    with pytest.raises(InvalidRequest, match="'fp4' is no precision of engines"):
        prepared(small_model(), "fp4")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_graph_of_halves_is_not_passed_off_as_another(small_model: Callable[..., ModelProto], precision: str) -> None:
    half = prepared(small_model(), "fp16")
    with pytest.raises(InvalidRequest, match=f"in fp16: an engine in {precision} is made of float32"):
        prepared(half, precision)
    assert prepared(half, "fp16").graph.initializer == half.graph.initializer


def test_int8_of_nothing_is_refused(small_model: Callable[..., ModelProto]) -> None:
    half = prepared(small_model(), "fp16")
    with pytest.raises(InvalidRequest, match="no product with a constant matrix in float32"):
        prepared(half, "int8")


@pytest.mark.parametrize("content", [None, b"", b"no model at all", b"\x08\x07"])
def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest) as caught:
        read_graph(path)
    assert "no ONNX model" in caught.value.message
    assert "\n" not in caught.value.message
