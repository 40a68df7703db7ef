"""The lease as a key in Redis, for schedulers on several machines: Redis keeps the time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from headrace.core.errors import Unavailable

KEY = "headrace:scheduler:leader"


class RedisLease:
    """Implements Lease. `client` is closed by whoever opened it."""

    def __init__(self, client: "redis.Redis", key: str = KEY) -> None:
        self._client = client
        self._key = key

    def take(self, holder: str, ttl_s: float) -> bool:
        ttl_ms = round(ttl_s * 1000)
        with self._answered():
            if self._client.set(self._key, holder, nx=True, px=ttl_ms):
                return True
            return self._if_own(holder, lambda pipe: pipe.pexpire(self._key, ttl_ms))

    def give_back(self, holder: str) -> None:
        with self._answered():
            self._if_own(holder, lambda pipe: pipe.delete(self._key))

    def _if_own(self, holder: str, change: Callable[[Any], object]) -> bool:
        """Changes the key in one transaction, unless it is another's or becomes so meanwhile."""
        with self._client.pipeline() as pipe:
            pipe.watch(self._key)
            if pipe.get(self._key) != holder.encode():
                return False
            pipe.multi()
            change(pipe)
            try:
                pipe.execute()
            except redis.WatchError:
                return False
            return True

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise Unavailable(f"the lease in Redis cannot be read or written: {error}") from error
