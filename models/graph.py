"""Runs OpenVINO graphs on the CPU in float32, one sequence at a time: for checks, not for serving."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from headrace.core.errors import EngineFault

Float32 = NDArray[np.float32]

# Activations stay as they are, so that what is compared is the graph and its weights.
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "KV_CACHE_PRECISION": "f32"}
_DECODER_INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_ENCODER_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class Graph:
    """A graph and what it is: `kind` is "decoder" (a stateful one) or "encoder". Raises EngineFault for others."""

    def __init__(self, path: Path) -> None:
        core = ov.Core()
        core.set_property({"ENABLE_MMAP": False})  # the file may be moved or written over
        try:
            self._model = core.read_model(path)
            inputs = {port.any_name for port in self._model.inputs}
            self.kind = _kind(inputs, stateful=bool(self._model.get_sinks()))
            self._inputs = inputs
            self._output = self._model.outputs[0]
            self._request = core.compile_model(self._model, "CPU", _EXACT).create_infer_request()
        except RuntimeError as error:
            raise EngineFault(f"OpenVINO cannot run {path.name}: {str(error).strip().splitlines()[-1]}") from error

    @property
    def output_size(self) -> int:
        """The last dimension of the output; 0 if it is not fixed."""
        last = self._output.partial_shape[-1]
        return int(last.get_length()) if last.is_static else 0

    def outputs(self, probes: Sequence[Sequence[int]]) -> list[Float32]:
        """For each probe's token ids [T], logits or hidden states [T, N]."""
        return [self._run(np.asarray([probe], np.int64)) for probe in probes]

    def _run(self, ids: NDArray[np.int64]) -> Float32:
        every = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.arange(ids.shape[1])[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.reset_state()
        result = self._request.infer({name: every[name] for name in self._inputs})
        return np.array(result[0][0], np.float32)


def _kind(inputs: set[str], *, stateful: bool) -> str:
    if stateful and {"input_ids", "beam_idx"} <= inputs <= _DECODER_INPUTS:
        return "decoder"
    if not stateful and {"input_ids", "attention_mask"} <= inputs <= _ENCODER_INPUTS:
        return "encoder"
    raise EngineFault(
        f"the graph (inputs {', '.join(sorted(inputs))}) is neither a stateful decoder nor an encoder of token ids"
    )
