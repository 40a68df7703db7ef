"""Which lease the settings name. A store's library is imported only where it is named."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.chassis.config import SchedulerSettings
from headrace.core.errors import ConfigError
from headrace.scheduler.leadership.file_lease import FileLease
from headrace.scheduler.leadership.lease import Lease

FILE_SCHEME = "file:"


@contextmanager
def open_lease(settings: SchedulerSettings) -> Iterator[Lease | None]:
    """None where there is only one scheduler. Raises ConfigError where the library is missing."""
    if not settings.leadership:
        yield None
    elif settings.leadership.startswith(FILE_SCHEME):
        yield FileLease(Path(settings.leadership.removeprefix(FILE_SCHEME)))
    else:
        try:
            import redis

            from headrace.scheduler.leadership.redis_lease import RedisLease
        except ImportError as error:
            raise ConfigError(f"scheduler.leadership: pip install 'headrace[scheduler-redis]' ({error})") from error
        timeout_s = settings.leadership_ms / 1000 / 4
        client = redis.Redis.from_url(settings.leadership, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
        with client:
            yield RedisLease(client)
