"""Answers that were made before, exactly these, for the tenant that had them: found again instead of made again.

Kept in a store of results of its own, whose bounds and expiry are the cache's. A store that is away is no cache, and
nothing else: the answer is made.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from enum import Enum

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis.config import CacheSettings
from headrace.core.errors import HeadraceError
from headrace.core.request import FinishReason, Precision
from headrace.core.result_state import ResultState
from headrace.gateway.cache.whole import Whole
from headrace.gateway.codec import encode
from headrace.gateway.generation import Piece, Usage
from headrace.gateway.results.port import LONGEST_S, ResultStore, Summary

log = logging.getLogger(__name__)

MOST_STORING = 64
"""Answers that wait to be stored; what comes beyond is not kept."""


class Lookup(Enum):
    """How a look into the cache ended."""

    HIT = "hit"
    MISS = "miss"
    AWAY = "away"


class AnswerCache:
    """Tasks live in `tasks`; they hold nobody up."""

    def __init__(self, store: ResultStore, settings: CacheSettings, tasks: asyncio.TaskGroup) -> None:
        self._store = store
        self._settings = settings
        self._tasks = tasks
        self._storing: set[str] = set()

    async def find(self, key: str) -> tuple[Lookup, Sequence[Piece]]:
        """The answer's pieces, one for each of its n."""
        try:
            summary = await self._store.find(key)
            if summary is None or summary.state is not ResultState.FINISHED or summary.expires_s <= time.time():
                return Lookup.MISS, ()
            kept = await self._store.read(key, 0, summary.num_pieces)
        except HeadraceError as error:
            log.warning("the answer cache is away: %s", error.message)
            return Lookup.AWAY, ()
        if not kept or len(kept) != summary.num_pieces:
            return Lookup.MISS, ()  # it was dropped meanwhile
        return Lookup.HIT, [_piece(pb.GenerateResponse.FromString(each)) for each in kept]

    async def keeping(
        self, key: str, tenant: str, model: str, n: int, pieces: AsyncIterator[Piece]
    ) -> AsyncIterator[Piece]:
        """The pieces as they come. Once all are there the answer is kept, unless a screen found something in it or it
        is too long; one that fails or is broken off is not."""
        whole = Whole(n, self._settings.max_answer_bytes)
        async for piece in pieces:
            whole.add(piece)
            yield piece
        if (made := whole.pieces()) is not None and key not in self._storing and len(self._storing) < MOST_STORING:
            self._storing.add(key)
            task = self._tasks.create_task(self._keep(key, tenant, model, made), name="keep an answer")
            task.add_done_callback(lambda _: self._storing.discard(key))

    async def _keep(self, key: str, tenant: str, model: str, made: Sequence[Piece]) -> None:
        now_s = time.time()
        expires_s = now_s + self._settings.ttl_s
        data = [encode("", piece).SerializeToString() for piece in made]
        num_tokens = sum(len(piece.token_ids) for piece in made) // 4
        try:
            await self._store.drop(key)  # what has expired and is still there
            await self._store.open(Summary(key, tenant, "", model, now_s, now_s + LONGEST_S, expires_s))
            if await self._store.append(key, 0, 0, data, num_tokens, now_s + LONGEST_S, expires_s):
                await self._store.close(key, 0, ResultState.FINISHED, "", "", expires_s)
        except HeadraceError as error:
            log.warning("an answer is not kept for the next time: %s", error.message)


def _piece(kept: pb.GenerateResponse) -> Piece:
    usage = None
    if kept.HasField("usage"):
        given = kept.usage
        usage = Usage(given.prompt_tokens, given.completion_tokens, given.cached_prompt_tokens)
    return Piece(
        kept.index,
        kept.text,
        kept.token_ids,
        list(kept.logprobs),
        FinishReason(kept.finish_reason),
        Precision.known(kept.precision),
        usage,
        from_cache=True,
    )
