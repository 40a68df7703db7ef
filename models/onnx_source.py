"""What an ONNX file computes by ONNX Runtime, in an environment of its own: to compare its conversion with."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.models.environment import Environment

REQUIREMENTS = ("onnxruntime==1.32.0",)
_SCRIPT = Path(__file__).with_name("onnx_outputs.py")


def environment(home: Path) -> Environment:
    """ONNX Runtime for the CPU under a home folder; beside another build of it in one environment it breaks."""
    return Environment(home / "onnx-runtime", REQUIREMENTS, "runs ONNX models")


def outputs(
    runtime: Environment, source: Path, work: Path, probes: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """The first output [T, N] of each probe's token ids; `work` is a folder to make. Raises EngineFault."""
    return runtime.probed(_SCRIPT, source, work, probes, "outputs.npz", f"ONNX Runtime cannot run {source.name}")
