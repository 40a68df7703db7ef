"""What OpenVINO engines share: how a failed load is told, and what they run on."""

from headrace.core.errors import EngineNotReady
from headrace.models.repository import ModelEntry


def not_loaded(entry: ModelEntry, error: Exception) -> EngineNotReady:
    """One line, however many the library took."""
    reason = " ".join(str(error).split())
    return EngineNotReady(f"model {entry.info.name}: OpenVINO cannot load {entry.graph.name}: {reason}", field="model")
