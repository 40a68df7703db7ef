"""Engines by name. Each stands in a module of its own, imported only when asked for: its libraries are heavy."""

from headrace.chassis.config import ExecutorSettings
from headrace.core.errors import ConfigError
from headrace.executor.engines.protocol import Engine
from headrace.models.repository import ModelEntry

_REFERENCE_BLOCKS = 4096


def load_engine(settings: ExecutorSettings, entry: ModelEntry) -> Engine:
    """The model on the engine that the settings name. Blocks while loading.

    Raises EngineNotReady where the engine cannot load it, ConfigError where the engine's packages are missing.
    """
    if settings.engine == "reference":
        from headrace.executor.engines.reference import ReferenceEngine

        return ReferenceEngine(entry.info, _REFERENCE_BLOCKS, step_delay_s=settings.reference_step_ms / 1000)
    try:
        from headrace.executor.engines.openvino import OpenVinoEngine
    except ImportError as error:
        raise ConfigError(f"executor.engine openvino: {error}; install headrace[executor-openvino]") from error
    return OpenVinoEngine(entry, kv_bytes=settings.kv_bytes, threads=settings.threads, exact=settings.exact)
