"""AMD devices through ONNX Runtime's MIGraphX provider: its options, and whether a session has got it.

Names of options are those that version 1.27 of onnxruntime-migraphx reads. Not proved on a device.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision
from headrace.executor.backends.catalogue import MIGRAPHX

PROVIDER = "MIGraphXExecutionProvider"
_CPU = "CPUExecutionProvider"
_ENABLE = {
    Precision.FP32: None,
    Precision.FP16: "migraphx_fp16_enable",
    Precision.BF16: "migraphx_bf16_enable",
    Precision.INT8: "migraphx_int8_enable",
}


def providers(
    index: int, precision: Precision, cache: Path, *, calibration: Path | None = None, exhaustive_tune: bool = False
) -> list[tuple[str, Mapping[str, str]]]:
    """For an InferenceSession over device `index`. Compiled programs are kept in `cache`, as compiling takes minutes;
    int8 wants a `calibration` table. Raises EngineNotReady for a precision that it lacks."""
    if precision not in _ENABLE:
        names = ", ".join(each.name.lower() for each in _ENABLE)
        raise EngineNotReady(
            f"{MIGRAPHX.name} does not compute in {precision.name.lower()}", field="executor.precision", limit=names
        )
    options = {"device_id": str(index), "migraphx_model_cache_dir": str(cache)}
    if (enable := _ENABLE[precision]) is not None:
        options[enable] = "1"
    if precision is Precision.INT8:
        if calibration is None:
            raise EngineNotReady(f"{MIGRAPHX.name}: int8 wants a calibration table", field="executor.precision")
        options["migraphx_int8_calibration_table_name"] = str(calibration)
    if exhaustive_tune:
        options["migraphx_exhaustive_tune"] = "1"
    return [(PROVIDER, options), (_CPU, {})]


def require_available(available: Sequence[str]) -> None:
    """Of `onnxruntime.get_available_providers()`. Raises EngineNotReady where this build has no MIGraphX."""
    if PROVIDER not in available:
        raise EngineNotReady(
            f"{MIGRAPHX.name}: this onnxruntime has {', '.join(available) or 'no provider'}; {MIGRAPHX.how}"
        )


def check_session(got: Sequence[str]) -> None:
    """Of `session.get_providers()`: a provider that fails leaves the session on the CPU without a word, with right
    answers. Raises EngineNotReady."""
    if PROVIDER not in got:
        raise EngineNotReady(f"{MIGRAPHX.name}: the session has fallen back to {', '.join(got)}")
