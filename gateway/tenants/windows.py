"""What tenants have used in the last minute: sliding windows of the library `limits`, in memory or in Redis.

While Redis is away calls are allowed or refused, as the settings say, without waiting for it with each call.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import StorageError

from headrace.chassis.config import TenantsSettings
from headrace.core.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from limits.aio.storage import RedisStorage

log = logging.getLogger(__name__)

Given = TypeVar("Given")

REDIS_S = 0.25
"""Longest wait for Redis."""
AWAY_S = 1.0
"""How long Redis is left alone after it did not answer."""
LOG_S = 60.0


class Windows:
    """Hits and looks by unit ("requests", "tokens") and tenant."""

    def __init__(
        self, storage: "MemoryStorage | RedisStorage", refuse: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`refuse`: what is asked while the storage is away."""
        self._storage = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        self._refuse = refuse
        self._clock = clock
        self._away_until = self._log_from = -1.0

    async def hit(self, unit: str, tenant: str, amount: int, cost: int) -> bool:
        """Takes `cost` of `amount` a minute, or nothing where there is not so much left."""
        item = _item(unit, amount)
        return await self._asked(lambda: self._limiter.hit(item, tenant, cost=cost), True)

    async def test(self, unit: str, tenant: str, amount: int, cost: int) -> bool:
        """Whether a hit would succeed now."""
        item = _item(unit, amount)
        return await self._asked(lambda: self._limiter.test(item, tenant, cost=cost), True)

    async def room_in_s(self, unit: str, tenant: str, amount: int, cost: int) -> float:
        """When there is room for `cost`, if nothing else is taken meanwhile."""
        item = _item(unit, amount)
        window_s = item.get_expiry()
        previous, previous_left_s, current, current_left_s = await self._asked(
            lambda: self._storage.get_sliding_window(item.key_for(tenant), window_s), (0, 0.0, 0, 0.0)
        )
        return room_in_s(amount - cost, window_s, previous, previous_left_s, current, current_left_s - window_s)

    async def _asked(self, ask: Callable[[], Awaitable[Given]], unknown: Given) -> Given:
        """Raises Unavailable where Redis is away and the settings refuse then."""
        now = self._clock()
        if now >= self._away_until:
            try:
                async with asyncio.timeout(REDIS_S):
                    return await ask()
            except (StorageError, TimeoutError) as error:
                self._away_until = now + AWAY_S
                if now >= self._log_from:
                    self._log_from = now + LOG_S
                    log.warning("quotas cannot be counted: %s", error or "no answer in time")
        if self._refuse:
            raise Unavailable("quotas cannot be counted now")
        return unknown


def _item(unit: str, amount: int) -> RateLimitItemPerMinute:
    return RateLimitItemPerMinute(amount, namespace=f"headrace:{unit}")


def room_in_s(
    free: int, window_s: float, previous: int, previous_left_s: float, current: int, current_left_s: float
) -> float:
    """Seconds until the sliding count is at most `free`: what the window before counts for falls in a straight line to
    nothing while the current one passes (`..._left_s`), and then the current one's does."""
    if current <= free:
        weight_s = (free - current) * window_s / previous if previous else window_s
        return max(0.0, previous_left_s - weight_s)
    return max(0.0, current_left_s) + window_s * (1 - free / current)


@asynccontextmanager
async def open_windows(settings: TenantsSettings) -> AsyncIterator[Windows]:
    """In memory, or in Redis where the settings name one. Raises ConfigError where its client is not installed."""
    refuse = settings.redis_away == "refuse"
    if not settings.redis:
        yield Windows(MemoryStorage(), refuse)
        return
    try:
        from redis.asyncio import ConnectionPool
    except ImportError as error:
        raise ConfigError("tenants.redis needs: pip install headrace[tenants-redis]") from error
    from limits.aio.storage import RedisStorage

    pool = ConnectionPool.from_url(settings.redis)
    try:
        yield Windows(
            RedisStorage(
                f"async+{settings.redis}", wrap_exceptions=True, implementation="redispy", connection_pool=pool
            ),
            refuse,
        )
    finally:
        await pool.aclose()
