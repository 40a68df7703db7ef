"""The Execute stream of an encoder: one session a gateway, texts in, vectors or scores out.

Runs on the event loop; the worker's thread hands results over once a batch.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import grpc
from opentelemetry.trace import Tracer

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.executor.v1 import executor_pb2_grpc
from headrace.chassis.outbox import LONGEST_WRITE_S, Outbox
from headrace.chassis.status import to_fault
from headrace.core.errors import Draining, HeadraceError, InvalidRequest, ModelNotFound
from headrace.executor.encoding.codec import to_encoded, to_task
from headrace.executor.encoding.spans import record
from headrace.executor.encoding.task import Done
from headrace.executor.encoding.worker import EncodeWorker
from headrace.executor.enlist import EnlistLink


class EncoderService(executor_pb2_grpc.ExecutorServiceServicer):
    """Gateways' sessions over one worker, which `worker` is set to before the first call."""

    def __init__(
        self, executor_id: str, model: str, num_slots: int, tracer: Tracer, enlist: EnlistLink, max_message_bytes: int
    ) -> None:
        self._executor_id = executor_id
        self._model = model
        self._num_slots = num_slots
        self._tracer = tracer
        self._enlist = enlist
        self._max_message_bytes = max_message_bytes
        self._sessions: dict[int, Outbox[pb.Encoded]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.worker: EncodeWorker | None = None
        self.draining = False

    def deliver(self, dones: Sequence[Done]) -> None:
        """From the worker's thread: one hand-over a batch."""
        self._loop.call_soon_threadsafe(self._distribute, dones)

    def _distribute(self, dones: Sequence[Done]) -> None:
        for done in dones:
            if session := self._sessions.get(done.task.session):
                session.put(to_encoded(done))
        self._enlist.report([], [done.task.request_id for done in dones])
        record(self._tracer, self._executor_id, dones)

    async def Execute(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[pb.ExecuteRequest],
        context: grpc.aio.ServicerContext[pb.ExecuteRequest, pb.ExecuteResponse],
    ) -> None:
        number, session = next(self._numbers), Outbox[pb.Encoded](self._max_message_bytes)
        self._sessions[number] = session
        try:
            await session.exchange(
                self._read(request_iterator, number, session),
                lambda encoded: context.write(pb.ExecuteResponse(encoded=encoded)),
                LONGEST_WRITE_S,
            )
        finally:
            del self._sessions[number]
            self._worker.cancel(number)

    def close_sessions(self) -> None:
        """Ends every stream after what waits on it: nothing more will come."""
        for session in self._sessions.values():
            session.close()

    @property
    def _worker(self) -> EncodeWorker:
        assert self.worker is not None
        return self.worker

    async def _read(self, frames: AsyncIterator[pb.ExecuteRequest], number: int, session: Outbox[pb.Encoded]) -> None:
        async for frame in frames:
            for encode in frame.encodes:
                try:
                    self._take(encode, number)
                except HeadraceError as error:
                    session.put(pb.Encoded(request_id=encode.request_id, fault=to_fault(error)))
                    self._enlist.report([], [encode.request_id])
            for start in frame.starts:
                fault = to_fault(InvalidRequest(f"model {self._model} is an encoder", field="model", limit="decoder"))
                session.put(pb.Encoded(request_id=start.request_id, fault=fault))
                self._enlist.report([], [start.request_id])
            for request_id in frame.cancelled_request_ids:
                self._worker.cancel(number, request_id)

    def _take(self, encode: pb.Encode, number: int) -> None:
        if self.draining:
            raise Draining("the executor is leaving")
        if encode.model != self._model:
            raise ModelNotFound(f"model {encode.model!r} is not loaded here", field="model", limit=self._model)
        self._worker.submit(to_task(encode, number))
        self._enlist.report([encode.request_id], [])

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.GetStatusResponse:
        status = self._worker.status()
        return pb.GetStatusResponse(
            executor_id=self._executor_id,
            num_running=status.num_running,
            num_blocks_in_use=status.num_blocks_in_use,
            num_blocks=self._num_slots,
            num_slots_in_use=status.num_running,
            num_slots=self._num_slots,
            num_steps=status.num_steps,
            num_tokens=status.num_tokens,
        )
