"""Which store the settings name. A store's library is imported only where it is named."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from headrace.chassis.config import CacheSettings, ResultsSettings
from headrace.core.errors import ConfigError
from headrace.gateway.results.port import Bounds, ResultStore
from headrace.gateway.results.sqlite import SqliteStore

FILE, CACHE_FILE = "results.db", "answers.db"
PREFIX, CACHE_PREFIX = "headrace:result", "headrace:answer"


def open_store(settings: ResultsSettings, home: Path) -> AbstractAsyncContextManager[ResultStore]:
    """Nothing is reached before the first call of it. Raises ConfigError where the library is missing."""
    bounds = Bounds(settings.max_results, settings.max_bytes)
    return _open(settings.store, home / FILE, bounds, PREFIX, "results.store")


def open_cache(settings: CacheSettings, home: Path) -> AbstractAsyncContextManager[ResultStore]:
    """As `open_store`; what it keeps are answers that may be asked for again."""
    bounds = Bounds(settings.max_answers, settings.max_bytes)
    return _open(settings.store, home / CACHE_FILE, bounds, CACHE_PREFIX, "cache.store")


def _open(
    where: str, default: Path, bounds: Bounds, prefix: str, setting: str
) -> AbstractAsyncContextManager[ResultStore]:
    if not where.startswith(("redis://", "rediss://", "unix://")):
        return SqliteStore(Path(where) if where else default, bounds)
    try:
        from headrace.gateway.results.redis import RedisStore
    except ImportError as error:
        raise ConfigError(f"{setting}: pip install 'headrace[results-redis]' ({error})") from error
    return RedisStore.at(where, bounds, prefix)
