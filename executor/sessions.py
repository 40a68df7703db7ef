"""Execute streams: one session a gateway, frames in and out, everything of a lost session cancelled.

What the members of a frame are is the subclass's: requests of a decoder or texts of an encoder. Runs on the event loop.
"""

import asyncio
import itertools
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Generic, Protocol, TypeVar

import grpc
from opentelemetry.trace import Tracer

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.executor.v1 import executor_pb2_grpc
from headrace.chassis.outbox import LONGEST_WRITE_S, Outbox
from headrace.core.errors import Draining, ModelNotFound
from headrace.executor.enlist import EnlistLink


class Cancelling(Protocol):
    """The worker, as far as a session's end concerns it."""

    def cancel(self, session: int, request_id: str | None = None) -> None: ...


Member = TypeVar("Member", pb.Output, pb.Encoded)
AnyWorker = TypeVar("AnyWorker", bound=Cancelling)


class SessionService(executor_pb2_grpc.ExecutorServiceServicer, Generic[Member, AnyWorker]):
    """Gateways' sessions over one worker, which `worker` is set to before the first call.

    `enlist` tells the scheduler what started and finished.
    """

    def __init__(
        self,
        executor_id: str,
        model: str,
        tracer: Tracer,
        enlist: EnlistLink,
        max_message_bytes: int,
        longest_write_s: float = LONGEST_WRITE_S,
    ) -> None:
        self._executor_id = executor_id
        self._model = model
        self._tracer = tracer
        self._enlist = enlist
        self._max_message_bytes = max_message_bytes
        self._longest_write_s = longest_write_s
        self._sessions: dict[int, Outbox[Member]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.worker: AnyWorker | None = None
        self.draining = False

    async def Execute(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[pb.ExecuteRequest],
        context: grpc.aio.ServicerContext[pb.ExecuteRequest, pb.ExecuteResponse],
    ) -> None:
        number, session = next(self._numbers), Outbox[Member](self._max_message_bytes)
        self._sessions[number] = session
        try:
            await session.exchange(
                self._read(request_iterator, number),
                lambda members: context.write(self._frame(members)),
                self._longest_write_s,
            )
        finally:
            del self._sessions[number]
            self._worker.cancel(number)

    def close_sessions(self) -> None:
        """Ends every stream after what waits on it: nothing more will come."""
        for session in self._sessions.values():
            session.close()

    @property
    def _worker(self) -> AnyWorker:
        assert self.worker is not None
        return self.worker

    async def _read(self, frames: AsyncIterator[pb.ExecuteRequest], number: int) -> None:
        async for frame in frames:
            self._take_in(frame, number)
            for request_id in frame.cancelled_request_ids:
                self._worker.cancel(number, request_id)

    def _send(self, number: int, member: Member) -> None:
        """Goes out with the session's next frame; nowhere, where the session has ended."""
        if session := self._sessions.get(number):
            session.put(member)

    def _refuse(self, number: int, refusal: Member) -> None:
        """Tells the gateway, and the scheduler that its place is free."""
        self._send(number, refusal)
        self._enlist.report([], [refusal.request_id])

    def _check_taken(self, model: str) -> None:
        """Raises Draining, and ModelNotFound where the request is for another model."""
        if self.draining:
            raise Draining("the executor is leaving")
        if model != self._model:
            raise ModelNotFound(f"model {model!r} is not loaded here", field="model", limit=self._model)

    @abstractmethod
    def _take_in(self, frame: pb.ExecuteRequest, number: int) -> None:
        """Hands the frame's requests to the worker; each that cannot be taken is refused by itself."""

    @abstractmethod
    def _frame(self, members: list[Member]) -> pb.ExecuteResponse: ...
