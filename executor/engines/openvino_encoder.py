"""Encoders on OpenVINO's CPU plugin.

`int8` keeps each weight matrix in eight bits with one scale an output and multiplies in eight bits; `bf16` and `fp32`
take the weights as they are. Measured on MiniLM, the least alike text's cosine to fp32: bf16 0.99997, int8 0.9986, and
both about as fast where the CPU multiplies bf16, which is why `auto` takes bf16 there and int8 elsewhere.
"""

import numpy as np
import openvino as ov
from openvino import opset13 as op

from headrace.core.errors import EngineFault, EngineNotReady
from headrace.core.request import Precision
from headrace.executor.engines.encoder import EncoderSpec, Int64
from headrace.executor.engines.loading import not_loaded
from headrace.executor.engines.packed_graph import POSITIONS, SEGMENTS, pack_rows
from headrace.executor.engines.protocol import Float32
from headrace.executor.hardware.defaults import host
from headrace.models.repository import ModelEntry

_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16", Precision.INT8: "f32"}
_MOST_INT8 = 127
_INT8_GROUP = 32  # activations that share a scale


class OpenVinoEncoder:
    """An encoder in OpenVINO IR. `precision` is auto, fp32, bf16 or int8; `threads` 0 means all cores.

    With `packing` several texts may share a row, where the graph can be made to keep them apart and has no head.
    """

    def __init__(self, entry: ModelEntry, *, precision: str = "auto", threads: int = 0, packing: bool = False) -> None:
        core, cpu = ov.Core(), host().cpu
        num_threads = threads or cpu.num_threads
        served = _served(core, precision)
        try:
            model = core.read_model(entry.graph)
            if served is Precision.INT8:
                _quantise_weights(model)
            packs = packing and len(model.outputs[0].get_partial_shape()) == 3 and pack_rows(model)
            compiled = core.compile_model(
                model,
                "CPU",
                {
                    "INFERENCE_NUM_THREADS": num_threads,
                    "INFERENCE_PRECISION_HINT": _HINTS[served],
                    "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_INT8_GROUP if served is Precision.INT8 else 0),
                    "PERFORMANCE_HINT": "LATENCY",
                },
            )
        except RuntimeError as error:
            raise not_loaded(entry, error) from error
        shape = compiled.outputs[0].get_partial_shape()
        if shape[-1].is_dynamic:
            raise EngineNotReady(f"model {entry.info.name}: the size of its output is not fixed")
        self._inputs = {port.any_name for port in compiled.inputs}
        self._request = compiled.create_infer_request()
        self._closed = False
        self.spec = EncoderSpec(
            name="openvino",
            precision=served,
            context_tokens=entry.info.context_tokens,
            vocab_size=entry.info.vocab_size,
            output_size=shape[-1].get_length(),
            has_head=len(shape) == 2,
            packs=packs,
            architecture=cpu.architecture(num_threads),
        )

    def forward(self, token_ids: Int64, token_types: Int64, segments: Int64, positions: Int64) -> Float32:
        if self._closed:
            raise EngineFault("the encoder is closed")
        every = {
            "input_ids": token_ids,
            "token_type_ids": token_types,
            "attention_mask": segments,  # of a graph that does not pack: one text a row, 1 where there is a token
            SEGMENTS: segments,
            POSITIONS: positions,
        }
        result = self._request.infer({name: every[name] for name in self._inputs}, share_inputs=True)
        output: Float32 = result[0]
        return output

    def close(self) -> None:
        self._closed = True
        del self._request


def _served(core: ov.Core, precision: str) -> Precision:
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision == "auto":
        return Precision.BF16 if has_bf16 else Precision.INT8
    if precision == "bf16" and not has_bf16:
        raise EngineNotReady("this CPU does not multiply bf16", field="encoder.precision", limit="fp32, int8")
    return Precision[precision.upper()]


def _quantise_weights(model: ov.Model) -> None:
    """Each product with a constant matrix: its weights to eight bits, with one scale an output."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        constant = node.input_value(1).get_node()
        if constant.get_type_name() != "Constant" or len(constant.shape) != 2:
            continue
        weights = np.asarray(constant.data, np.float32)
        outputs_first = node.get_attributes()["transpose_b"]
        scales = np.maximum(
            np.abs(weights).max(axis=int(outputs_first), keepdims=True) / _MOST_INT8, np.finfo(np.float32).tiny
        )
        rounded = np.rint(weights / scales).astype(np.int8)
        restored = op.multiply(op.convert(op.constant(rounded), "f32"), op.constant(scales))
        node.input(1).replace_source_output(restored.output(0))
