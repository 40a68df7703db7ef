"""Results in Redis, for several gateways: what one has stored, each of them finds.

A result is a hash, a list of pieces, and its request while it runs. Sorted sets hold who runs (by when its lease runs
out) and who has ended (by when it expires); leaving them decides, of several gateways, which one drops a result.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Self, TypeVar

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError, WatchError

from headrace.core.errors import Overloaded, Unavailable
from headrace.core.result_state import ResultState
from headrace.gateway.results.port import LONGEST_S, RETRY_AFTER_S, Bounds, Summary
from headrace.gateway.results.redis_names import Names

Given = TypeVar("Given")

PREFIX = "headrace:result"
_KINDS: dict[str, Any] = {field.name: field.type for field in fields(Summary)}


class RedisStore:
    """See ResultStore. `async with` closes the connections."""

    def __init__(self, redis: Redis, bounds: Bounds, prefix: str = PREFIX) -> None:
        """Stores of other prefixes share nothing with it."""
        self._redis = redis
        self._bounds = bounds
        self._names = Names(prefix)

    @classmethod
    def at(cls, url: str, bounds: Bounds, prefix: str = PREFIX) -> Self:
        return cls(Redis.from_url(url), bounds, prefix)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._redis.aclose()

    async def open(self, summary: Summary, request: bytes = b"", pieces: Sequence[bytes] = ()) -> None:
        async def work() -> None:
            await self._drop_expired(summary.created_s)
            while (
                await self._redis.zcard(self._names.running) + await self._redis.zcard(self._names.ended)
                >= self._bounds.max_results
            ):
                if not await self._drop_oldest(summary.created_s):
                    raise Overloaded(
                        f"{self._bounds.max_results} results are being made",
                        limit=f"{self._bounds.max_results} results",
                        retry_after_s=RETRY_AFTER_S,
                    )
            async with self._redis.pipeline(transaction=True) as batch:
                batch.hset(self._names.key(summary.handle), mapping=_hash(summary))
                if request:
                    batch.set(self._names.request(summary.handle), request)
                if pieces:
                    batch.rpush(self._names.pieces(summary.handle), *pieces)
                batch.incrby(self._names.bytes, summary.num_bytes)
                batch.zadd(self._names.running, {summary.handle: summary.lost_s})
                batch.zadd(self._names.tenant(summary.tenant), {summary.handle: summary.created_s})
                await batch.execute()

        await self._bounded(work)

    async def append(
        self,
        handle: str,
        epoch: int,
        first: int,
        pieces: Sequence[bytes],
        num_tokens: int,
        lost_s: float,
        expires_s: float,
    ) -> bool:
        def change(batch: Pipeline, there: Summary) -> None:
            new = pieces[max(0, there.num_pieces - first) :]
            num_bytes = sum(map(len, new))
            if new:
                batch.rpush(self._names.pieces(handle), *new)
            batch.hset(
                self._names.key(handle),
                mapping={
                    "num_pieces": there.num_pieces + len(new),
                    "num_tokens": num_tokens,
                    "num_bytes": there.num_bytes + num_bytes,
                    "lost_s": lost_s,
                    "expires_s": expires_s,
                },
            )
            batch.zadd(self._names.running, {handle: lost_s})
            batch.incrby(self._names.bytes, num_bytes)

        async def work() -> bool:
            if await self._changed(handle, epoch, change) is None:
                return False
            while int(await self._redis.get(self._names.bytes) or 0) > self._bounds.max_bytes:
                if not await self._drop_oldest(time.time()):
                    break
            return True

        return await self._bounded(work)

    async def close(
        self, handle: str, epoch: int, state: ResultState, reason: str, message: str, expires_s: float
    ) -> bool:
        def change(batch: Pipeline, there: Summary) -> None:
            ending = {"state": int(state), "reason": reason, "message": message, "expires_s": expires_s}
            sizes = {"num_bytes": there.num_bytes - there.request_bytes, "request_bytes": 0}
            batch.hset(self._names.key(handle), mapping=ending | sizes)
            batch.delete(self._names.request(handle))
            batch.decrby(self._names.bytes, there.request_bytes)
            batch.zrem(self._names.running, handle)
            batch.zadd(self._names.ended, {handle: expires_s})

        async def work() -> bool:
            return await self._changed(handle, epoch, change) is not None

        return await self._bounded(work)

    async def lost(self, now_s: float, most: int) -> list[Summary]:
        async def work() -> list[Summary]:
            return await self._summaries(
                await self._redis.zrangebyscore(self._names.running, "-inf", now_s, start=0, num=most)
            )

        return await self._bounded(work)

    async def take(self, handle: str, epoch: int, now_s: float, lost_s: float, expires_s: float) -> bytes | None:
        def change(batch: Pipeline, there: Summary) -> None:
            batch.hset(self._names.key(handle), mapping={"epoch": epoch + 1, "lost_s": lost_s, "expires_s": expires_s})
            batch.zadd(self._names.running, {handle: lost_s})
            batch.get(self._names.request(handle))

        async def work() -> bytes | None:
            def lost(there: Summary) -> bool:
                return there.state is ResultState.RUNNING and there.lost_s <= now_s

            answers = await self._changed(handle, epoch, change, lost)
            return None if answers is None else answers[-1]

        return await self._bounded(work)

    async def find(self, handle: str) -> Summary | None:
        return await self._bounded(lambda: self._find(handle))

    async def read(self, handle: str, first: int, most: int) -> list[bytes]:
        async def work() -> list[bytes]:
            return list(await self._redis.lrange(self._names.pieces(handle), first, first + most - 1))

        return await self._bounded(work)

    async def _summaries(self, handles: Sequence[bytes]) -> list[Summary]:
        """Of those that are there."""
        async with self._redis.pipeline(transaction=False) as batch:
            for handle in handles:
                batch.hgetall(self._names.key(handle.decode()))
            return [_summary(each) for each in await batch.execute() if each]

    async def list(self, tenant: str) -> list[Summary]:
        async def work() -> list[Summary]:
            return await self._summaries(await self._redis.zrevrange(self._names.tenant(tenant), 0, -1))

        return await self._bounded(work)

    async def drop(self, handle: str) -> None:
        await self._bounded(lambda: self._drop(handle))

    async def _bounded(self, work: Callable[[], Awaitable[Given]]) -> Given:
        try:
            async with asyncio.timeout(LONGEST_S):
                return await work()
        except TimeoutError:
            raise Unavailable(f"the result store did not answer within {LONGEST_S:g} s") from None
        except (RedisError, OSError) as error:
            raise Unavailable(f"the result store cannot be reached: {error}") from error

    async def _find(self, handle: str) -> Summary | None:
        values = await self._redis.hgetall(self._names.key(handle))
        return _summary(values) if values else None

    async def _changed(
        self,
        handle: str,
        epoch: int,
        change: Callable[[Pipeline, Summary], None],
        fits: Callable[[Summary], bool] = lambda there: True,
    ) -> Sequence[Any] | None:
        """One transaction over what is there, and its answers; None where it is gone, of another epoch, or does not
        fit, also if that comes to be meanwhile."""
        while True:
            async with self._redis.pipeline(transaction=True) as batch:
                await batch.watch(self._names.key(handle))
                values = await batch.hgetall(self._names.key(handle))
                there = _summary(values) if values else None
                if there is None or there.epoch != epoch or not fits(there):
                    return None
                batch.multi()
                change(batch, there)
                try:
                    return list(await batch.execute())
                except WatchError:
                    continue

    async def _drop_expired(self, now_s: float) -> None:
        for handle in await self._redis.zrangebyscore(self._names.ended, "-inf", now_s):
            await self._drop(handle.decode())
        for handle in await self._redis.zrangebyscore(
            self._names.running, "-inf", now_s
        ):  # lost; kept for a while all the same
            summary = await self._find(handle.decode())
            if summary is None or summary.expires_s <= now_s:
                await self._drop(handle.decode())

    async def _drop_oldest(self, now_s: float) -> bool:
        """The one that has ended and expires first, else one that is lost. False where all of them run."""
        oldest = await self._redis.zrange(self._names.ended, 0, 0) or await self._redis.zrangebyscore(
            self._names.running, "-inf", now_s, start=0, num=1
        )
        for handle in oldest:
            await self._drop(handle.decode())
        return bool(oldest)

    async def _drop(self, handle: str) -> None:
        summary = await self._find(handle)
        async with self._redis.pipeline(transaction=True) as batch:
            batch.zrem(self._names.running, handle)
            batch.zrem(self._names.ended, handle)
            batch.delete(self._names.key(handle), self._names.pieces(handle), self._names.request(handle))
            was_running, had_ended, _ = await batch.execute()
        if summary is not None and (was_running or had_ended):
            await self._redis.zrem(self._names.tenant(summary.tenant), handle)
            await self._redis.decrby(self._names.bytes, summary.num_bytes)


def _hash(summary: Summary) -> dict[str, str | int | float]:
    return asdict(summary) | {"state": int(summary.state)}


def _summary(values: Mapping[bytes, bytes]) -> Summary:
    given: dict[str, Any] = {}
    for key, value in values.items():
        name = key.decode()
        kind = {str: str, int: int, float: float}.get(_KINDS[name], lambda text: ResultState(int(text)))
        given[name] = kind(value.decode())
    return Summary(**given)
