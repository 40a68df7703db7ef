"""Puts right the four-bit weights that OpenVINO's GGUF reader rounds, in groups as wide as the CPU's kernels like.

GGUF formats such as Q4_1 give each group of weights a scale and a minimum. The reader turns the minimum into an integer
zero point of four bits, which moves every weight of a group by up to half a step: measured on SmolLM2-135M Q4_1, the
logits' correlation with the source falls to 0.77 and four of ten top tokens change. Here those groups are quantised
again, from the file's own weights, to eight bits with a zero point of eight bits (0.999), which keeps the CPU plug-in's
integer kernels. A fractional zero point would be nearer still, but sends it to other kernels, whose results depend on
the number of rows in a step.

With eight bits a group need not stay at the file's 32 weights. Those kernels quantise activations in groups of the same
width, and the fewer the groups, the fewer the scalings: measured on SmolLM2-135M, groups of 96 take 12 to 18 % off a
step at the same perplexity. The graph's runtime options carry the width to whoever compiles it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np
import openvino as ov
from gguf import ReaderTensor, dequantize
from numpy.typing import NDArray
from openvino import opset13 as op

from headrace.core.errors import EngineFault
from headrace.models.gguf_file import GgufFile

Float32 = NDArray[np.float32]

EXACT_ZERO_POINT = 8  # of the symmetric formats, such as Q4_0
FILE_GROUP = 32  # weights a group in the formats that the reader knows
WIDEST_GROUP = 128  # wider ones lose accuracy in the activations, which are quantised in the same groups
LEAST_LIKENESS = 0.98  # four bits keep a row nearly straight; rows of different matrices have nothing in common


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A compressed matrix of the graph: multiply(subtract(codes, zeros), scales), in groups [R, G, S]."""

    codes: ov.Node
    zeros: ov.Node
    multiply: ov.Node

    @property
    def four_bits(self) -> bool:
        return bool(self.codes.get_element_type() == ov.Type.u4)

    @property
    def rounded(self) -> bool:
        return self.four_bits and not np.all(self._values(self.zeros) == EXACT_ZERO_POINT)

    def weights(self, rows: int | None = None) -> Float32:
        """The first `rows` rows, or all [R, C], as the graph has them."""
        codes, zeros = (self._values(each)[:rows].astype(np.float32) for each in (self.codes, self.zeros))
        scales = self.multiply.input_value(1).get_node().get_data()[:rows].astype(np.float32)
        weights: Float32 = (codes - zeros) * scales
        return weights.reshape(len(weights), -1)

    def replace(self, weights: Float32, width: int) -> None:
        """Puts weights [R, C] in, at eight bits in groups of `width`."""
        codes, zeros, scales = quantise(weights.reshape(len(weights), -1, width))
        self.multiply.input(0).replace_source_output(
            op.subtract(op.convert(op.constant(codes), "f16"), op.convert(op.constant(zeros), "f16")).output(0)
        )
        self.multiply.input(1).replace_source_output(op.constant(scales).output(0))

    @property
    def read_by(self) -> ov.Output:
        """What the rest of the graph reads: the weights [R, C] in float32."""
        node = self.multiply
        while node.get_output_element_type(0) != ov.Type.f32:
            (target,) = node.output(0).get_target_inputs()
            node = target.get_node()
        return node.output(0)

    def _values(self, constant: ov.Node) -> NDArray[np.uint8]:
        return unpack(constant) if self.four_bits else constant.get_data()


def restore(file: GgufFile, graph: Path) -> int:
    """Rewrites a graph's rounded weights in place; returns how many matrices. Raises EngineFault if one is unknown.

    Where no matrix has exact four bits, which stay as they are, the others are put into the wider groups too.
    """
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})  # the file is written over
    model = core.read_model(graph)
    tensors = {tensor.name: tensor for tensor in file.reader.tensors if len(tensor.shape) == 2}
    matrices = list(_matrices(model))
    restored = [matrix for matrix in matrices if matrix.rounded]
    if not restored:
        return 0
    wide = not any(matrix.four_bits and not matrix.rounded for matrix in matrices)
    width = group_width([int(np.prod(matrix.codes.get_shape()[1:])) for matrix in matrices]) if wide else FILE_GROUP
    for matrix in matrices:
        if matrix.rounded:
            name = _matching(matrix.weights(1)[0], matrix.codes.get_shape()[0], tensors)
            matrix.replace(_in_graph_order(file, tensors.pop(name)), width)
        elif wide:
            matrix.replace(matrix.weights(), width)
    model.set_rt_info(str(width), ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    ov.save_model(model, graph, compress_to_fp16=False)
    return len(restored)


def whole(file: GgufFile, graph: Path, target: Path) -> None:
    """Writes the graph with the file's own weights in float32 in place of each compressed matrix."""
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})
    model = core.read_model(graph)
    tensors = {tensor.name: tensor for tensor in file.reader.tensors if len(tensor.shape) == 2}
    for matrix in list(_matrices(model)):
        name = _matching(matrix.weights(1)[0], matrix.codes.get_shape()[0], tensors)
        matrix.read_by.replace(op.constant(_in_graph_order(file, tensors[name])).output(0))
    ov.save_model(model, target, compress_to_fp16=False)


def group_width(row_lengths: Sequence[int]) -> int:
    """The widest group, a multiple of 32 up to 128, that divides rows of all these lengths; else 32."""
    common = gcd(*row_lengths)
    return max((w for w in range(FILE_GROUP, WIDEST_GROUP + 1, FILE_GROUP) if common % w == 0), default=FILE_GROUP)


def quantise(weights: Float32) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float16]]:
    """Codes [R, G, S], zero points and scales [R, G, 1] of weights [R, G, S]: weight = (code - zero) * scale."""
    low = np.minimum(weights.min(axis=-1, keepdims=True), 0)
    high = np.maximum(weights.max(axis=-1, keepdims=True), 0)
    scales = np.maximum((high - low) / 255, np.finfo(np.float16).smallest_subnormal).astype(np.float16)
    steps = scales.astype(np.float32)
    zeros = np.clip(np.rint(-low / steps), 0, 255)
    codes = np.clip(np.rint(weights / steps) + zeros, 0, 255)
    return codes.astype(np.uint8), zeros.astype(np.uint8), scales


def _matrices(model: ov.Model) -> Iterator[_Matrix]:
    for subtract in model.get_ordered_ops():
        if subtract.get_type_name() != "Subtract":
            continue
        codes, zeros = (_behind_convert(subtract.input_value(index).get_node()) for index in (0, 1))
        if codes is None or zeros is None or codes.get_element_type() not in (ov.Type.u4, ov.Type.u8):
            continue
        (target,) = subtract.output(0).get_target_inputs()
        yield _Matrix(codes, zeros, target.get_node())


def _behind_convert(node: ov.Node) -> ov.Node | None:
    if node.get_type_name() != "Convert":
        return None
    constant = node.input_value(0).get_node()
    return constant if constant.get_type_name() == "Constant" else None


def unpack(constant: ov.Node) -> NDArray[np.uint8]:
    """The values of a four-bit constant, in its shape."""
    packed, shape = constant.get_data().reshape(-1), list(constant.get_shape())
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[: int(np.prod(shape))].reshape(shape)


def _matching(first_row: Float32, num_rows: int, tensors: Mapping[str, ReaderTensor]) -> str:
    """The tensor whose first row the graph's row stands for. Raises EngineFault."""
    rows = {
        name: dequantize(tensor.data[:1], tensor.tensor_type).reshape(-1)
        for name, tensor in tensors.items()
        if tuple(reversed(tensor.shape)) == (num_rows, first_row.size)
    }
    likeness = {name: float(np.corrcoef(row, first_row)[0, 1]) for name, row in rows.items()}
    best = max(likeness, key=likeness.__getitem__, default=None)
    if best is None or likeness[best] < LEAST_LIKENESS:
        raise EngineFault("OpenVINO's graph holds a weight matrix that is not in the GGUF file")
    return best


def _in_graph_order(file: GgufFile, tensor: ReaderTensor) -> Float32:
    """The weights [R, C]; a Llama's queries and keys in halves, as they were before GGUF set rotated pairs adjacent."""
    weights: Float32 = dequantize(tensor.data, tensor.tensor_type)
    if file.architecture != "llama" or not tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
        return weights
    num_heads = int(file.wanted(".attention.head_count"))
    if tensor.name.endswith("attn_k.weight"):
        num_heads = int(file.value(".attention.head_count_kv", num_heads))
    rows, columns = weights.shape
    return weights.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
