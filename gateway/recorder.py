"""Writes runs to the store while they are made, and so renews the lease under which this gateway makes them."""

import asyncio
import logging
import secrets
import time

from headrace.chassis.config import ResultsSettings
from headrace.chassis.telemetry import to_frame
from headrace.core.errors import Draining, HeadraceError
from headrace.core.result_state import ResultState
from headrace.gateway.codec import accepted
from headrace.gateway.results.port import ResultStore, Summary
from headrace.gateway.run import Run

log = logging.getLogger(__name__)

HANDLE_BYTES = 16
LAST_TRIES = 30
"""How often the end of an answer is tried to be stored, once a progress_s, before it is given up."""


def lease(settings: ResultsSettings, now_s: float) -> tuple[float, float]:
    """When a result that is stored now counts as lost unless it is stored again, and when it is dropped then."""
    lost_s = now_s + settings.progress_s + settings.lost_after_s
    return lost_s, lost_s + settings.ttl_s


class Recorder:
    """Of all of this gateway's runs."""

    def __init__(self, store: ResultStore, settings: ResultsSettings) -> None:
        self._store = store
        self._settings = settings

    async def open(self, run: Run) -> str:
        """The handle under which it is stored from now on, with what there is of it. Raises Overloaded, Unavailable."""
        handle, now_s, made = secrets.token_urlsafe(HANDLE_BYTES), time.time(), run.log
        pieces = [piece.SerializeToString() for piece in made.pieces]
        request = b"" if run.request is None else accepted(run.request, run.wish)
        left_s = self._settings.background_s
        if run.latest is not None:
            left_s = run.latest - asyncio.get_running_loop().time()
        summary = Summary(
            handle,
            run.tenant,
            run.wish.request_id,
            run.wish.model.name,
            now_s,
            *lease(self._settings, now_s),
            num_pieces=len(pieces),
            num_tokens=made.num_tokens,
            num_bytes=len(request) + sum(map(len, pieces)),
            due_s=now_s + left_s,
            request_bytes=len(request),
            trace="" if run.trace is None else to_frame(run.trace).traceparent,
        )
        await self._store.open(summary, request, pieces)
        made.store(len(pieces))
        return handle

    async def follow(self, handle: str, epoch: int, run: Run) -> bool:
        """Stores what comes, as often as the settings say or somebody waits for it, until the end is stored. False
        where the result is not this gateway's any more."""
        tries, made = 0, run.log
        while tries < LAST_TRIES:
            ended = made.ended
            try:
                there = await self._write(handle, epoch, run, ended)
            except HeadraceError as error:
                tries += ended
                log.warning("result %s is not stored yet: %s", handle, error.message)
                await asyncio.sleep(self._settings.progress_s)
                continue
            if ended or not there:
                return there
            await made.to_store(asyncio.get_running_loop().time() + self._settings.progress_s)
        log.error("the end of result %s could not be stored", handle)
        return True

    async def _write(self, handle: str, epoch: int, run: Run, ended: bool) -> bool:
        made, now_s = run.log, time.time()
        first, count = made.num_stored, len(made.pieces)
        lost_s, expires_s = lease(self._settings, now_s)
        if ended and isinstance(made.error, Draining):
            lost_s = now_s  # whoever is there takes it over at once
        pieces = [piece.SerializeToString() for piece in made.pieces[first:count]]
        if not await self._store.append(handle, epoch, first, pieces, made.num_tokens, lost_s, expires_s):
            return False
        made.store(count)
        if ended and not run.kept:
            await self._store.drop(handle)
        elif ended and not isinstance(made.error, Draining):
            state = ResultState.FAILED if made.error else ResultState.FINISHED
            reason, message = (made.error.reason, made.error.message) if made.error else ("", "")
            return await self._store.close(handle, epoch, state, reason, message, now_s + self._settings.ttl_s)
        return True
