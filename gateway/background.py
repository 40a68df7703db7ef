"""Answers that may outlive their call: each is made by a task of its own, and kept once its SLA has passed.

What the call streams and what is stored afterwards is one log of pieces. Until it is kept, an answer ends with its
call; from then on it has a handle, batch priority, and the store's bounds instead of the caller's deadline.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis.config import ResultsSettings
from headrace.chassis.interceptors import as_error
from headrace.core.errors import (
    ERROR_BY_REASON,
    Cancelled,
    Draining,
    EngineFault,
    HeadraceError,
    InvalidRequest,
    ResultNotFound,
)
from headrace.core.result_state import ResultState
from headrace.gateway.codec import MAX_NAME_CHARS, encode
from headrace.gateway.generation import TOKEN_BYTES, Piece, Wish
from headrace.gateway.relay import Relay
from headrace.gateway.results.log import ResultLog
from headrace.gateway.results.port import LONGEST_S, ResultStore, Summary
from headrace.gateway.sla import OnMiss, Sla

log = logging.getLogger(__name__)

HANDLE_BYTES = 16
READ_PIECES = 512
POLL_S = 0.2
"""How often a result that another gateway makes is looked for in the store."""
LAST_TRIES = 30
"""How often the end of an answer is tried to be stored, once a progress_s, before it is given up."""


class Run:
    """One answer being made. `relay` is there once its prompt has been prepared."""

    def __init__(self, wish: Wish, tenant: str, wire_id: str) -> None:
        self.wish = wish
        self.wire_id = wire_id
        self.tenant = tenant
        self.log = ResultLog[pb.GenerateResponse]()
        self.relay: Relay | None = None
        self.task: asyncio.Task[None] | None = None
        self.opening: asyncio.Future[str | None] | None = None
        self.kept = False
        self.abandoned = False
        self._cause: HeadraceError | None = None

    @property
    def prompt_tokens(self) -> int:
        """0 until the prompt has been prepared."""
        return 0 if self.relay is None else len(self.relay.generation.token_ids)

    def stop(self, cause: HeadraceError | None = None) -> None:
        """Ends it with `cause`, or as broken off."""
        self._cause = self._cause or cause
        if self.task is not None:
            self.task.cancel()

    def abandon(self) -> None:
        """Its call is over: it ends unless it is kept."""
        self.abandoned = True
        if not self.kept:
            self.stop()

    async def make(self, pieces: AsyncIterator[Piece], held: ExitStack) -> None:
        """Fills the log; `held` goes back at the end."""
        try:
            with held:
                try:
                    async for piece in pieces:
                        self.log.append(encode(self.wish.request_id, piece), len(piece.token_ids) // TOKEN_BYTES)
                except asyncio.CancelledError:
                    if self._cause is None:
                        raise
                    raise self._cause from None
            self.log.end(None)
        except Exception as error:
            self.log.end(as_error(error))
        finally:
            self.log.end(Draining("the gateway left before the answer was made"))


class Background:
    """The gateway's runs and their store. Tasks live in `tasks`; `demote` lets a request go on at batch priority."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        store: ResultStore,
        settings: ResultsSettings,
        demote: Callable[[Relay], None],
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._settings = settings
        self._demote = demote
        self._live: dict[str, Run] = {}
        self._recorders: set[asyncio.Task[None]] = set()

    @property
    def num_kept(self) -> int:
        """Answers that go on, or whose end is not stored yet."""
        return len(self._recorders)

    def latest(self, sla: Sla, arrived: float, deadline: float | None) -> float | None:
        """When the answer is of no use any more: at the caller's deadline, unless it may go on without the caller."""
        if sla.on_miss is not OnMiss.PARTIAL or (deadline is not None and deadline <= arrived + sla.first_s):
            return deadline
        return arrived + sla.last_s + self._settings.background_s

    def start(self, run: Run, pieces: AsyncIterator[Piece], held: ExitStack) -> None:
        """Makes the answer, whatever becomes of the call; takes over what is `held`."""
        run.task = self._tasks.create_task(run.make(pieces, held), name=f"make {run.wish.request_id}")
        run.task.add_done_callback(lambda _: held.close())  # also where it was cancelled before it began

    def prepare(self, run: Run) -> "asyncio.Future[str | None]":
        """Makes room in the store, ahead of the SLA, so that nobody waits for it then. Unless it is kept, the answer
        leaves nothing there."""
        if run.opening is None:
            run.opening = asyncio.get_running_loop().create_future()
            recorder = self._tasks.create_task(self._record(run, run.opening), name=f"record {run.wish.request_id}")
            self._recorders.add(recorder)
            recorder.add_done_callback(self._recorders.discard)
        return run.opening

    async def keep(self, run: Run) -> str | None:
        """The handle under which the answer goes on and is stored; None where there is no room, or no store."""
        opening, run.kept = self.prepare(run), True
        try:
            handle = await asyncio.shield(opening)  # a caller who leaves now has a result all the same
        finally:
            run.kept = not opening.done() or opening.result() is not None
        if handle is not None and run.relay is not None:
            self._demote(run.relay)
        return handle

    async def _record(self, run: Run, opening: "asyncio.Future[str | None]") -> None:
        handle, now_s = secrets.token_urlsafe(HANDLE_BYTES), time.time()
        times = self._until(now_s)
        try:
            await self._store.open(Summary(handle, run.tenant, run.wish.request_id, run.wish.model.name, now_s, *times))
        except HeadraceError as error:
            log.warning("request %s goes on in its call: %s", run.wish.request_id, error.message)
            run.kept = False
            if run.abandoned:
                run.stop()
            opening.set_result(None)
            return
        self._live[handle] = run
        opening.set_result(handle)
        try:
            if not await self._follow(handle, run):
                run.stop(Cancelled("the result was cancelled"))
        finally:
            del self._live[handle]

    async def _follow(self, handle: str, run: Run) -> bool:
        """Stores what comes, as often as the settings say, until the end is stored. False where the result is gone."""
        tries, stored, made = 0, 0, run.log
        while tries < LAST_TRIES:
            ended, count, now_s = made.ended, len(made.pieces), time.time()
            pieces = [piece.SerializeToString() for piece in made.pieces[stored:count]]
            try:
                there = await self._store.append(handle, stored, pieces, made.num_tokens, *self._until(now_s))
                stored = count
                if there and ended and not run.kept:
                    await self._store.drop(handle)
                elif there and ended:
                    state, error = _ending(made)
                    reason, message = (error.reason, error.message) if error else ("", "")
                    there = await self._store.close(handle, state, reason, message, now_s + self._settings.ttl_s)
                if ended or not there:
                    return there
            except HeadraceError as error:
                tries += ended
                log.warning("result %s is not stored yet: %s", handle, error.message)
                await asyncio.sleep(self._settings.progress_s if ended else 0)
            await made.over(asyncio.get_running_loop().time() + self._settings.progress_s)
        log.error("the end of result %s could not be stored", handle)
        return True

    def _until(self, now_s: float) -> tuple[float, float]:
        """When a result that is stored now counts as lost unless it is stored again, and when it is dropped then."""
        lost_s = now_s + self._settings.progress_s + self._settings.lost_after_s
        return lost_s, lost_s + self._settings.ttl_s

    async def attach(self, tenant: str, handle: str, offset: int) -> AsyncIterator[pb.GenerateResponse]:
        """Its pieces from number `offset` on, those to come too.

        Raises ResultNotFound, InvalidRequest for an offset beyond what there is, and at the end what the answer failed
        with.
        """
        run = self._live.get(handle)
        if run is not None and run.tenant == tenant:
            _check_offset(offset, len(run.log.pieces))
            while True:
                await run.log.more(offset, None)
                if offset >= len(run.log.pieces):
                    break
                yield run.log.pieces[offset]
                offset += 1
            if run.log.error is not None:
                raise run.log.error
            return
        summary = await self._found(tenant, handle)
        _check_offset(offset, summary.num_pieces)
        while True:
            pieces = await self._store.read(handle, offset, READ_PIECES)
            for piece in pieces:
                yield pb.GenerateResponse.FromString(piece)
            offset += len(pieces)
            if not pieces and offset >= summary.num_pieces:
                if summary.state is not ResultState.RUNNING:
                    break
                await asyncio.sleep(POLL_S)
            summary = await self._found(tenant, handle)
        if (error := _failure(summary)) is not None:
            raise error

    async def cancel(self, tenant: str, handle: str) -> None:
        """Ends it where it is being made, here or at another gateway, and drops it. Raises ResultNotFound."""
        await self._found(tenant, handle)
        await self._store.drop(handle)
        if (run := self._live.get(handle)) is not None:
            run.stop(Cancelled("the result was cancelled"))

    async def list(self, tenant: str) -> list[Summary]:
        """The newest first, as they are seen now."""
        now_s = time.time()
        return [each.at(now_s) for each in await self._store.list(tenant) if each.expires_s > now_s]

    async def _found(self, tenant: str, handle: str) -> Summary:
        summary = await self._store.find(handle) if len(handle) <= MAX_NAME_CHARS else None
        now_s = time.time()
        if summary is None or summary.tenant != tenant or summary.expires_s <= now_s:
            raise ResultNotFound(
                "no result of this handle: never made, expired, dropped or another tenant's",
                field="handle",
                limit="a handle of ListResults",
            )
        return summary.at(now_s)

    async def drain(self, until: float) -> None:
        """Waits for what is being made, to `until` on the event loop's clock; what is not made then is lost."""
        if self._recorders:
            await asyncio.wait(self._recorders, timeout=max(0.0, until - asyncio.get_running_loop().time()))
        for run in self._live.values():
            run.stop()
        if self._recorders:
            await asyncio.wait(self._recorders, timeout=LONGEST_S)
        for recorder in self._recorders:
            recorder.cancel()


def _ending(made: ResultLog[pb.GenerateResponse]) -> tuple[ResultState, HeadraceError | None]:
    if made.error is None:
        return ResultState.FINISHED, None
    return ResultState.LOST if isinstance(made.error, Draining) else ResultState.FAILED, made.error


def _failure(summary: Summary) -> HeadraceError | None:
    """What attaching ends with."""
    if summary.state is ResultState.LOST:
        return EngineFault(f"the gateway went away while it made this answer, after {summary.num_tokens} tokens")
    if summary.state is ResultState.FAILED:
        return ERROR_BY_REASON.get(summary.reason, EngineFault)(summary.message)
    return None


def _check_offset(offset: int, num_pieces: int) -> None:
    if offset > num_pieces:
        raise InvalidRequest(
            f"offset is {offset}, and there are {num_pieces} pieces", field="offset", limit=f"0..{num_pieces}"
        )
