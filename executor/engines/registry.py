"""Engines by name. Each stands in a module of its own, imported only when asked for: its libraries are heavy."""

from dataclasses import replace

from headrace.chassis.config import ExecutorSettings
from headrace.core.errors import ConfigError, EngineNotReady
from headrace.core.request import Precision
from headrace.executor.engines.protocol import Engine
from headrace.models.repository import ModelEntry

_REFERENCE_BLOCKS = 4096


def served(settings: ExecutorSettings, entry: ModelEntry) -> ModelEntry:
    """The model in the precision that the settings name.

    Raises ConfigError where they name several, EngineNotReady where the model is not there in it.
    """
    if len(settings.precision) != 1:
        raise ConfigError("executor.precision: one precision an executor; headrace up starts one for each")
    (name,) = settings.precision
    precision = entry.precision if name == "own" else Precision[name.upper()]
    if settings.engine == "reference":  # it has no weights
        return replace(entry, precision=Precision.FP32 if name == "own" else precision)
    if settings.engine == "torch":  # a checkpoint is loaded in any precision
        own = entry.precision if entry.precision in (Precision.FP32, Precision.BF16) else Precision.FP32
        return replace(entry, precision=own if name == "own" else precision)
    return entry.variant(precision)


def load_engine(settings: ExecutorSettings, entry: ModelEntry) -> Engine:
    """The model on the engine and in the precision that the settings name. Blocks while loading.

    Raises EngineNotReady where the engine cannot load it or it is not there in that precision, ConfigError where the
    engine's packages are missing or several precisions are named.
    """
    entry = served(settings, entry)
    if settings.engine == "reference":
        from headrace.executor.engines.reference import ReferenceEngine

        return ReferenceEngine(
            entry.info,
            _REFERENCE_BLOCKS,
            step_delay_s=settings.reference_step_ms / 1000,
            row_delay_s=settings.reference_row_ms / 1000,
            precision=entry.precision,
        )
    if settings.engine == "torch":
        return _torch(settings, entry)
    if settings.resident_experts:
        raise ConfigError("executor.resident_experts: only executor.engine torch keeps experts on demand")
    try:
        from headrace.executor.engines.openvino import OpenVinoEngine
    except ImportError as error:
        raise ConfigError(f"executor.engine openvino: {error}; install headrace[executor-openvino]") from error
    return OpenVinoEngine(
        entry,
        kv_bytes=settings.kv_bytes,
        threads=settings.threads,
        exact=settings.exact,
        kv_precision=settings.kv_precision,
    )


def _torch(settings: ExecutorSettings, entry: ModelEntry) -> Engine:
    try:
        from headrace.executor.engines.torch_engine import load
    except ImportError as error:
        raise ConfigError(f"executor.engine torch: {error}; install headrace[executor-torch]") from error
    if not entry.checkpoint.is_dir():
        raise EngineNotReady(
            f"model {entry.info.name!r} has no checkpoint; run: headrace models add FOLDER --checkpoint", field="model"
        )
    return load(
        entry.checkpoint,
        entry.precision,
        kv_bytes=settings.kv_bytes,
        threads=settings.threads,
        resident_experts=settings.resident_experts,
    )
