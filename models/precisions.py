"""Precision variants of a decoder: its graph with whole weights, beside the one of few bits that it comes with.

A variant is a folder of its precision's name in the model's folder. It is made from a graph in float32 that holds the
source's own weights: `fp32` is that graph, `bf16` has each matrix rounded to the nearest bfloat16.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from headrace.core.errors import InvalidRequest
from headrace.core.request import Precision
from headrace.models import check
from headrace.models.graph import Graph

Float32 = NDArray[np.float32]

BOUNDS = {Precision.FP32: check.EXACT, Precision.BF16: check.ROUNDED_DECODER}
"""The precisions that a variant may have, and how near to the source it must be in float32 arithmetic."""
LEAST_MATRIX = 4096  # elements; smaller constants are norms, positions and shapes
_INTEGERS = frozenset(("u4", "i4", "u8", "i8"))


def precision_of(graph: Path) -> Precision:
    """What a graph's matrices are stored in; half precision counts as float32, in which it is computed here."""
    kinds = {node.get_element_type().get_type_name() for node in _matrices(_read(graph))}
    if kinds & _INTEGERS:
        return Precision.INT8
    return Precision.BF16 if "bf16" in kinds else Precision.FP32


def check_variants(precisions: Sequence[Precision]) -> None:
    """Raises InvalidRequest for a precision that no variant has."""
    for precision in precisions:
        if precision not in BOUNDS:
            known = ", ".join(each.name.lower() for each in BOUNDS)
            raise InvalidRequest(f"no variant is made in {precision.name.lower()}, only in {known}", field="precision")


def write(
    whole: Path, target: Path, precision: Precision, probes: Sequence[Sequence[int]], expected: Sequence[Float32]
) -> check.Agreement:
    """Writes the variant of a graph in float32 to `target` and compares it with the source's logits [T, V] of each
    probe. Raises EngineFault where they do not agree."""
    model = _read(whole)
    if precision is Precision.BF16:
        for node in _matrices(model):
            if node.get_element_type() in (ov.Type.f32, ov.Type.f16):
                node.output(0).replace(in_bf16(node.get_data().astype(np.float32)))
    target.parent.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, target, compress_to_fp16=False)
    return check.compare(expected, Graph(target).outputs(probes), BOUNDS[precision])


def in_bf16(weights: Float32) -> ov.Output:
    """A constant of the weights rounded to bfloat16, ties to even, read as float32."""
    bits = np.ascontiguousarray(weights).view(np.uint32)
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape(list(weights.shape)))  # its own memory: a view of ours would be read late
    tensor.data.view(np.uint16)[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return op.convert(op.constant(tensor), "f32").output(0)


def _matrices(model: ov.Model) -> list[ov.Node]:
    return [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant"
        and len(node.get_shape()) > 1
        and int(np.prod(node.get_shape())) >= LEAST_MATRIX
    ]


def _read(graph: Path) -> ov.Model:
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})  # the file may be moved or written over
    return core.read_model(graph)
