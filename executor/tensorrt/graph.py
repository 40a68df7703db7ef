"""An ONNX model made ready for a strongly typed network: constants folded, its floats in the wanted precision.

Both flavours of TensorRT take the types of the graph as they stand, so precision is settled here and not by flags. In
`int8` each product with a constant matrix has its weights in eight bits with one scale an output
(DequantizeLinear, per axis), and the rest is as in fp16. Ids, masks and shapes keep their types.

Needs `onnx`; imported when a build is asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

from headrace.core.errors import InvalidRequest

LEAST_OPSET = 21  # from here on DequantizeLinear gives half precision
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")
_FLOATS = {"fp32": TensorProto.FLOAT, "tf32": TensorProto.FLOAT}
_FLOATS |= {"fp16": TensorProto.FLOAT16, "int8": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
_FOLDED = {"Cast", "Mul", "Transpose", "DequantizeLinear", "Identity"}
_EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)
_MOST_INT8 = 127
_MOST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the graph; a dynamic axis is its name, '' where it has none."""

    name: str
    shape: tuple[int | str, ...]


def read_graph(path: Path) -> ModelProto:
    """The model with its external data. Raises InvalidRequest in one line."""
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model if model.ByteSize() < 2**31 else str(path))
    except (OSError, DecodeError, ValueError, onnx.checker.ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise InvalidRequest(f"{path}: no ONNX model ({reason[:200]})", field="model") from error
    return model


def graph_inputs(model: ModelProto) -> list[Input]:
    """Those that a caller binds, in order."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [
        Input(
            value.name,
            tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param
                for dim in value.type.tensor_type.shape.dim
            ),
        )
        for value in model.graph.input
        if value.name not in constants
    ]


def prepared(model: ModelProto, precision: str) -> ModelProto:
    """A model for a strongly typed network. Raises InvalidRequest where the precision or the graph is none for it."""
    if precision not in PRECISIONS:
        raise InvalidRequest(
            f"{precision!r} is no precision of engines", field="precision", limit=", ".join(PRECISIONS)
        )
    model = _raised(model)
    _check_floats(model, precision)
    _fold_constants(model)
    if precision == "int8":
        _quantise_products(model)
    _floats_of_eight_bits(model)
    _retype(model, _FLOATS[precision])
    return model


def _check_floats(model: ModelProto, precision: str) -> None:
    """Only float32 is put into another precision: a graph of halves stays what it is, and must be asked for as that."""
    wanted = _FLOATS[precision]
    for tensor in model.graph.initializer:
        if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16) and tensor.data_type != wanted:
            held = "fp16" if tensor.data_type == TensorProto.FLOAT16 else "bf16"
            raise InvalidRequest(
                f"the graph holds {tensor.name} in {held}: an engine in {precision} is made of float32",
                field="precision",
                limit=held,
            )


def _raised(model: ModelProto) -> ModelProto:
    """In an opset that has what is needed."""
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
    if opset >= LEAST_OPSET:
        copy = ModelProto()
        copy.CopyFrom(model)
        return copy
    try:
        return version_converter.convert_version(model, LEAST_OPSET)
    except RuntimeError as error:  # also what it thinks of operators that it does not know
        reason = " ".join(str(error).split())[:200]
        raise InvalidRequest(
            f"opset {opset} cannot be raised to {LEAST_OPSET}: {reason}", field="model", limit=f"opset {LEAST_OPSET}"
        ) from error


def _fold_constants(model: ModelProto) -> None:
    """Cheap operators over constants only, such as those that scale stored weights, are computed once, here."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    kept: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type in _FOLDED and not node.domain and node.input and all(name in constants for name in node.input):
            value = helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, None)
            wanted = [constants[name] for name in dict.fromkeys(node.input)]
            graph = helper.make_graph([node], "one", [], [value], wanted)
            (result,) = ReferenceEvaluator(helper.make_model(graph, opset_imports=model.opset_import)).run(None, {})
            constants[node.output[0]] = numpy_helper.from_array(np.ascontiguousarray(result), node.output[0])
        else:
            kept.append(node)
    if len(kept) == len(model.graph.node):
        return
    del model.graph.node[:]
    model.graph.node.extend(kept)
    read = {name for node in kept for name in node.input} | {value.name for value in model.graph.output}
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensor for name, tensor in constants.items() if name in read)


def _quantise_products(model: ModelProto) -> None:
    """MatMul with a constant matrix [K, N]: eight bits and a scale for each of the N outputs."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[NodeProto] = []
    done: set[str] = set()
    for node in model.graph.node:
        weights = constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if weights is not None and weights.data_type == TensorProto.FLOAT and len(weights.dims) == 2:
            name = weights.name
            if name not in done:
                done.add(name)
                array = numpy_helper.to_array(weights)
                tiny = np.finfo(np.float16).tiny  # the smallest that a half-precision scale holds in full
                scales = np.maximum(np.abs(array).max(axis=0) / _MOST_INT8, tiny).astype(np.float32)
                rounded = np.clip(np.rint(array / scales), -_MOST_INT8, _MOST_INT8).astype(np.int8)
                model.graph.initializer.append(numpy_helper.from_array(rounded, f"{name}_int8"))
                model.graph.initializer.append(numpy_helper.from_array(scales, f"{name}_scales"))
                inputs = [f"{name}_int8", f"{name}_scales"]
                nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_restored"], axis=1))
            node.input[1] = f"{name}_restored"
        nodes.append(node)
    if not done and not any(node.op_type == "DequantizeLinear" for node in nodes):
        raise InvalidRequest(
            "the graph has no product with a constant matrix in float32: there is nothing to hold in eight bits",
            field="precision",
        )
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    whole = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(whole)


def _floats_of_eight_bits(model: ModelProto) -> None:
    """Eight-bit constants that nothing dequantises (looked up first, then cast) become floats of the same values:
    a builder takes eight bits in front of DequantizeLinear only."""
    quantised = {
        name
        for node in model.graph.node
        if node.op_type in ("DequantizeLinear", "QuantizeLinear")
        for name in node.input
    }
    for tensor in model.graph.initializer:
        if tensor.data_type in _EIGHT_BITS and tensor.name not in quantised:
            array = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _retype(model: ModelProto, to: int) -> None:
    """Every float32 of the graph: constants, casts, inputs, outputs."""
    del model.graph.value_info[:]  # inferred anew by the parser
    if to == TensorProto.FLOAT:
        return
    for tensor in model.graph.initializer:
        _retype_tensor(tensor, to)
    for attribute in _attributes(model):
        if attribute.type == AttributeProto.TENSOR:
            _retype_tensor(attribute.t, to)
        elif attribute.name in ("to", "dtype", "output_dtype", "stash_type") and attribute.i == TensorProto.FLOAT:
            attribute.i = to if attribute.name != "stash_type" else attribute.i  # sums stay in float32
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = to


def _attributes(model: ModelProto) -> Iterator[AttributeProto]:
    for node in model.graph.node:
        yield from node.attribute


def _retype_tensor(tensor: TensorProto, to: int) -> None:
    if tensor.data_type != TensorProto.FLOAT:
        return
    array = numpy_helper.to_array(tensor)
    if to == TensorProto.FLOAT16:
        # masks hold float32's lowest number, which would become an infinity, and sums of it no number at all
        array = np.clip(array, -_MOST_HALF, _MOST_HALF).astype(np.float16)
    else:
        array = array.astype(ml_dtypes.bfloat16)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
