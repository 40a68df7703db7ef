"""An engine's KV memory as the block pool asks for it."""

from headrace.executor.engines.protocol import Engine, Int32, MappingEngine


class EngineMemory:
    """Implements kv.extents.BlockMemory over an engine. Pages come as they are written where the engine
    maps nothing itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._mapping = engine if isinstance(engine, MappingEngine) else None

    def map_blocks(self, first: int, count: int) -> None:
        if self._mapping is not None:
            self._mapping.map_blocks(first, count)

    def unmap_blocks(self, blocks: Int32) -> None:
        self._engine.release_blocks(blocks)
