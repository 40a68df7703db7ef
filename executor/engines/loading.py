"""What is said where an engine's library does not take a model."""

from headrace.core.errors import EngineNotReady
from headrace.models.repository import ModelEntry


def not_loaded(library: str, entry: ModelEntry, error: Exception) -> EngineNotReady:
    """One line, however many the library took."""
    reason = " ".join(str(error).split())
    return EngineNotReady(f"model {entry.info.name}: {library} cannot load {entry.graph.name}: {reason}", field="model")
