"""The Execute stream: one session a gateway, frames in and out, everything of a lost session cancelled.

Runs on the event loop; the worker's thread hands results over once a step.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import grpc
from opentelemetry.trace import Tracer

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.executor.v1 import executor_pb2_grpc
from headrace.chassis.outbox import LONGEST_WRITE_S, Outbox
from headrace.chassis.status import to_fault
from headrace.core.errors import Draining, HeadraceError, ModelNotFound
from headrace.executor.codec import to_job, to_memory, to_output
from headrace.executor.enlist import EnlistLink
from headrace.executor.spans import record
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker


class ExecutorService(executor_pb2_grpc.ExecutorServiceServicer):
    """Gateways' sessions over one worker. `enlist` tells the scheduler what started and finished."""

    def __init__(
        self,
        executor_id: str,
        model: str,
        tracer: Tracer,
        enlist: EnlistLink,
        max_message_bytes: int,
        longest_write_s: float = LONGEST_WRITE_S,
        *,
        cache_by_tenant: bool = False,
    ) -> None:
        self._executor_id = executor_id
        self._model = model
        self._tracer = tracer
        self._enlist = enlist
        self._max_message_bytes = max_message_bytes
        self._longest_write_s = longest_write_s
        self._cache_by_tenant = cache_by_tenant
        self._sessions: dict[int, Outbox[pb.Output]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.worker: Worker | None = None
        self.draining = False

    def deliver(self, result: StepResult) -> None:
        """From the worker's thread: one hand-over a step."""
        self._loop.call_soon_threadsafe(self._distribute, result)

    def _distribute(self, result: StepResult) -> None:
        now_ns = time.time_ns()
        for delta in result.deltas:
            if session := self._sessions.get(delta.job.session):
                session.put(to_output(delta))
            record(self._tracer, self._executor_id, delta, now_ns)
        if result.started or result.finished:
            self._enlist.report(result.started, result.finished, result.output_tokens)

    async def Execute(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[pb.ExecuteRequest],
        context: grpc.aio.ServicerContext[pb.ExecuteRequest, pb.ExecuteResponse],
    ) -> None:
        number, session = next(self._numbers), Outbox[pb.Output](self._max_message_bytes)
        self._sessions[number] = session
        reading = self._read(request_iterator, number, session)
        try:
            await session.exchange(
                reading, lambda outputs: context.write(pb.ExecuteResponse(outputs=outputs)), self._longest_write_s
            )
        finally:
            del self._sessions[number]
            self._worker.cancel(number)

    def close_sessions(self) -> None:
        """Ends every stream after what waits on it: nothing more will come."""
        for session in self._sessions.values():
            session.close()

    @property
    def _worker(self) -> Worker:
        assert self.worker is not None
        return self.worker

    async def _read(self, frames: AsyncIterator[pb.ExecuteRequest], number: int, session: Outbox[pb.Output]) -> None:
        async for frame in frames:
            for start in frame.starts:
                try:
                    self._start(start, number)
                except HeadraceError as error:
                    session.put(pb.Output(request_id=start.request_id, fault=to_fault(error)))
                    self._enlist.report([], [start.request_id])
            for request_id in frame.cancelled_request_ids:
                self._worker.cancel(number, request_id)

    def _start(self, start: pb.Start, number: int) -> None:
        if self.draining:
            raise Draining("the executor is leaving")
        if start.model != self._model:
            raise ModelNotFound(f"model {start.model!r} is not loaded here", field="model", limit=self._model)
        self._worker.submit(to_job(start, number, by_tenant=self._cache_by_tenant))

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.GetStatusResponse:
        status, worker = self._worker.status(), self._worker
        return pb.GetStatusResponse(
            executor_id=self._executor_id,
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            num_blocks_in_use=status.num_blocks_in_use,
            num_blocks=worker.engine.spec.num_blocks,
            num_slots_in_use=status.num_slots_in_use,
            num_slots=worker.num_slots,
            num_steps=status.num_steps,
            num_tokens=status.num_tokens,
            memory=to_memory(status.memory, worker.engine.spec.kv_bytes_per_block),
        )
