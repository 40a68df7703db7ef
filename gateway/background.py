"""Answers that may outlive their call: each is made by a task of its own, and kept once its SLA has passed.

What the call streams and what is stored afterwards is one log of pieces. Until it is kept, an answer ends with its
call; from then on it has a handle, batch priority, and the store's bounds instead of the caller's deadline. Its readers
are given what is in the store: so an offset that they have got means the same at every gateway, whichever goes on.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis.config import ResultsSettings
from headrace.core.errors import (
    ERROR_BY_REASON,
    Cancelled,
    EngineFault,
    HeadraceError,
    InvalidRequest,
    ResultNotFound,
    Unavailable,
)
from headrace.core.result_state import ResultState
from headrace.gateway.codec import MAX_NAME_CHARS
from headrace.gateway.generation import Piece
from headrace.gateway.recorder import Recorder
from headrace.gateway.relay import Relay
from headrace.gateway.results.port import LONGEST_S, ResultStore, Summary
from headrace.gateway.run import Run
from headrace.gateway.sla import OnMiss, Sla

log = logging.getLogger(__name__)

READ_PIECES = 512
POLL_S = 0.2
"""How often a result that another gateway makes is looked for in the store."""


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
        self._recorder = Recorder(store, settings)
        self._settings = settings
        self._demote = demote
        self._live: dict[str, Run] = {}
        self._recorders: set[asyncio.Task[None]] = set()

    @property
    def num_kept(self) -> int:
        """Answers that go on, or whose end is not stored yet."""
        return len(self._recorders)

    def makes(self, handle: str) -> bool:
        """This gateway is at it, or storing its end."""
        return handle in self._live

    def latest(self, sla: Sla, arrived: float, deadline: float | None) -> float | None:
        """When the answer is of no use any more: at the caller's deadline, unless it may go on without the caller."""
        if sla.on_miss is not OnMiss.PARTIAL or (deadline is not None and deadline <= arrived + sla.first_s):
            return deadline
        return self.longest(arrived + sla.last_s, None)

    def longest(self, since: float, deadline: float | None) -> float:
        """When an answer that nobody waits for since then is of no use any more."""
        latest = since + self._settings.background_s
        return latest if deadline is None else min(latest, deadline)

    def start(self, run: Run, pieces: AsyncIterator[Piece], held: ExitStack) -> None:
        """Makes the answer, whatever becomes of the call; takes over what is `held`."""
        run.task = self._tasks.create_task(run.make(pieces, held), name=f"make {run.wish.request_id}")
        run.task.add_done_callback(lambda _: held.close())  # also where it was cancelled before it began

    def resume(self, handle: str, epoch: int, run: Run, pieces: AsyncIterator[Piece], held: ExitStack) -> None:
        """Goes on with what another gateway has begun, in an epoch that is this gateway's."""
        self._live[handle] = run
        self.start(run, pieces, held)
        self._record(run, self._follow(handle, epoch, run))

    def prepare(self, run: Run) -> "asyncio.Future[str | None]":
        """Makes room in the store, ahead of the SLA, so that nobody waits for it then. Unless it is kept, the answer
        leaves nothing there."""
        if run.opening is None:
            run.opening = asyncio.get_running_loop().create_future()
            self._record(run, self._open(run, run.opening))
        return run.opening

    def _record(self, run: Run, work: Coroutine[Any, Any, None]) -> None:
        recorder = self._tasks.create_task(work, name=f"record {run.wish.request_id}")
        self._recorders.add(recorder)
        recorder.add_done_callback(self._recorders.discard)

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

    async def _open(self, run: Run, opening: "asyncio.Future[str | None]") -> None:
        try:
            handle = await self._recorder.open(run)
        except HeadraceError as error:
            log.warning("request %s goes on in its call: %s", run.wish.request_id, error.message)
            run.kept = False
            if run.abandoned:
                run.stop()
            run.log.settle()
            opening.set_result(None)
            return
        self._live[handle] = run
        opening.set_result(handle)
        await self._follow(handle, 0, run)

    async def _follow(self, handle: str, epoch: int, run: Run) -> None:
        try:
            if not await self._recorder.follow(handle, epoch, run):
                run.taken = await self._still_there(handle)
                run.stop(
                    Unavailable("another gateway goes on with this answer")
                    if run.taken
                    else Cancelled("the result was cancelled")
                )
                if run.task is not None:
                    await asyncio.wait([run.task])  # its readers hear the end before there is nobody left to ask
        finally:
            run.log.settle()
            del self._live[handle]

    async def _still_there(self, handle: str) -> bool:
        try:
            return await self._store.find(handle) is not None
        except HeadraceError:
            return True  # whoever reads it asks the store again

    async def attach(self, tenant: str, handle: str, offset: int) -> AsyncIterator[pb.GenerateResponse]:
        """Its pieces from number `offset` on, those to come too.

        Raises ResultNotFound, InvalidRequest for an offset beyond what there is, and at the end what the answer failed
        with.
        """
        run = self._live.get(handle)
        if run is not None and run.tenant == tenant:
            _check_offset(offset, run.log.num_stored)
            async for piece in self._live_pieces(run, offset):
                yield piece
                offset += 1
            if not run.taken:
                if run.log.error is not None:
                    raise run.log.error
                return
        summary = await self._found(tenant, handle)
        _check_offset(offset, summary.num_pieces)
        while True:
            pieces = await self._store.read(handle, offset, READ_PIECES)
            for each in pieces:
                yield pb.GenerateResponse.FromString(each)
            offset += len(pieces)
            if not pieces and offset >= summary.num_pieces:
                if summary.state is not ResultState.RUNNING:
                    break
                await asyncio.sleep(POLL_S)
            summary = await self._found(tenant, handle)
        if (error := failure_of(summary)) is not None:
            raise error

    async def _live_pieces(self, run: Run, offset: int) -> AsyncIterator[pb.GenerateResponse]:
        """What this gateway makes of it, once it is in the store or will never be."""
        made = run.log
        while True:
            await made.stored(offset, None)
            there = len(made.pieces) if made.settled and not run.taken else made.num_stored
            if offset >= there:
                return
            for piece in made.pieces[offset:there]:
                yield piece
            offset = there

    async def cancel(self, tenant: str, handle: str) -> None:
        """Ends it where it is being made, here or at another gateway, and drops it. Raises ResultNotFound."""
        await self._found(tenant, handle)
        await self._store.drop(handle)
        if (run := self._live.get(handle)) is not None:
            run.stop(Cancelled("the result was cancelled"))

    async def stop(self, tenant: str, handle: str) -> None:
        """Ends it, where this gateway makes it, and keeps what there is: it has failed as Cancelled. What another makes
        is dropped, what has ended stays as it is. Raises ResultNotFound."""
        summary = await self._found(tenant, handle)
        if summary.state is not ResultState.RUNNING:
            return
        if (run := self._live.get(handle)) is None:
            await self._store.drop(handle)
            return
        run.stop(Cancelled("the result was cancelled"))
        await run.log.settlement(asyncio.get_running_loop().time() + LONGEST_S)

    async def look(self, tenant: str, handle: str) -> tuple[Summary, list[pb.GenerateResponse]]:
        """What is stored of it now. Raises ResultNotFound."""
        summary, pieces = await self._found(tenant, handle), list[pb.GenerateResponse]()
        while len(pieces) < summary.num_pieces and (part := await self._store.read(handle, len(pieces), READ_PIECES)):
            pieces += [pb.GenerateResponse.FromString(each) for each in part]
        return summary, pieces

    async def list(self, tenant: str) -> list[Summary]:
        """The newest first, as they are seen now."""
        now_s, most = time.time(), self._settings.max_takeovers
        return [each.at(now_s, most) for each in await self._store.list(tenant) if each.expires_s > now_s]

    async def _found(self, tenant: str, handle: str) -> Summary:
        summary = await self._store.find(handle) if len(handle) <= MAX_NAME_CHARS else None
        now_s = time.time()
        if summary is None or summary.tenant != tenant or summary.expires_s <= now_s:
            raise ResultNotFound(
                "no result of this handle: never made, expired, dropped or another tenant's",
                field="handle",
                limit="a handle of ListResults",
            )
        return summary.at(now_s, self._settings.max_takeovers)

    async def drain(self, until: float) -> None:
        """Waits for what is being made, to `until` on the event loop's clock; what is not made then is left to another
        gateway."""
        if self._recorders:
            await asyncio.wait(self._recorders, timeout=max(0.0, until - asyncio.get_running_loop().time()))
        for run in self._live.values():
            run.stop()
        if self._recorders:
            await asyncio.wait(self._recorders, timeout=LONGEST_S)
        for recorder in self._recorders:
            recorder.cancel()


def failure_of(summary: Summary) -> HeadraceError | None:
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
