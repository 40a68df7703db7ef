"""What OpenVINO engines share: how a failed load is told, and what they run on."""

from typing import TYPE_CHECKING

from headrace.core.errors import EngineNotReady
from headrace.models.repository import ModelEntry

if TYPE_CHECKING:
    import openvino as ov


def cpu_architecture(core: "ov.Core", threads: int) -> str:
    """The processor and how many threads of it: as good a key as any to how fast a step is."""
    return f"{core.get_property('CPU', 'FULL_DEVICE_NAME')}, {threads} threads"


def not_loaded(entry: ModelEntry, error: Exception) -> EngineNotReady:
    """One line, however many the library took."""
    reason = " ".join(str(error).split())
    return EngineNotReady(f"model {entry.info.name}: OpenVINO cannot load {entry.graph.name}: {reason}", field="model")
