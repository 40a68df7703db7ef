"""Which store the settings name. A store's library is imported only where it is named."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from headrace.chassis.config import ResultsSettings
from headrace.core.errors import ConfigError
from headrace.gateway.results.port import Bounds, ResultStore
from headrace.gateway.results.sqlite import SqliteStore

FILE = "results.db"


def open_store(settings: ResultsSettings, home: Path) -> AbstractAsyncContextManager[ResultStore]:
    """Nothing is reached before the first call of it. Raises ConfigError where the library is missing."""
    bounds = Bounds(settings.max_results, settings.max_bytes)
    if not settings.store.startswith(("redis://", "rediss://", "unix://")):
        return SqliteStore(Path(settings.store) if settings.store else home / FILE, bounds)
    try:
        from headrace.gateway.results.redis import RedisStore
    except ImportError as error:
        raise ConfigError(f"results.store: pip install 'headrace[results-redis]' ({error})") from error
    return RedisStore.at(settings.store, bounds)
