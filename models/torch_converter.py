"""Converts safetensors decoders, and computes what they answer, by transformers in an environment with torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.models.environment import Environment

REQUIREMENTS = ("optimum-intel[openvino]==2.2.0", "openvino==2026.4.1", "torch==2.13.0")
# Comes along, serves images only, and where it was built for another torch keeps transformers from loading.
UNWANTED = ("torchvision",)
_SCRIPT = Path(__file__).with_name("torch_export.py")


def environment(home: Path) -> Environment:
    """Some gigabytes of packages under a home folder."""
    return Environment(home / "converter", REQUIREMENTS, "converts safetensors decoders", UNWANTED)


def export(
    torch: Environment, source: Path, target: Path, probes: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """Writes the graph into `target`, and in float32 into `target`/whole.

    Returns the source's own logits [T, V] of each probe. Raises EngineFault with the exporter's last words.
    """
    return torch.probed(_SCRIPT, source, target, probes, "logits.npz", f"{source.name} cannot be converted")
