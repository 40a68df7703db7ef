"""A decoder's Execute streams: prompts in, tokens out.

Runs on the event loop; the worker's thread hands results over once a step.
"""

import time

from opentelemetry.trace import Tracer

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.chassis.outbox import LONGEST_WRITE_S
from headrace.chassis.status import to_fault
from headrace.core.errors import HeadraceError
from headrace.executor.codec import to_job, to_memory, to_output
from headrace.executor.enlist import EnlistLink
from headrace.executor.gathering import Gathering
from headrace.executor.sessions import SessionService
from headrace.executor.spans import record
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker


class ExecutorService(SessionService[pb.Output, Worker]):
    """Many streams together send about `pieces_per_s` pieces a second. With `cache_by_tenant` tenants share no cached
    prompts."""

    def __init__(
        self,
        executor_id: str,
        model: str,
        tracer: Tracer,
        enlist: EnlistLink,
        max_message_bytes: int,
        longest_write_s: float = LONGEST_WRITE_S,
        *,
        pieces_per_s: int,
        cache_by_tenant: bool = False,
    ) -> None:
        super().__init__(executor_id, model, tracer, enlist, max_message_bytes, longest_write_s)
        self._gathering = Gathering(pieces_per_s)
        self._cache_by_tenant = cache_by_tenant

    def deliver(self, result: StepResult) -> None:
        """From the worker's thread: one hand-over a step."""
        self._loop.call_soon_threadsafe(self._distribute, result)

    def _distribute(self, result: StepResult) -> None:
        now_ns, precision = time.time_ns(), self._worker.engine.spec.precision
        for piece in self._gathering.take(result.deltas, result.finished, self._loop.time()):
            if piece[0].job.session in self._sessions:
                self._send(piece[0].job.session, to_output(piece))
        for delta in result.deltas:
            record(self._tracer, self._executor_id, precision, delta, now_ns)
        if result.started or result.finished:
            self._enlist.report(result.started, result.finished, result.output_tokens)

    def _take_in(self, frame: pb.ExecuteRequest, number: int) -> None:
        for start in frame.starts:
            try:
                self._check_taken(start.model)
                self._worker.submit(to_job(start, number, by_tenant=self._cache_by_tenant))
            except HeadraceError as error:
                self._refuse(number, pb.Output(request_id=start.request_id, fault=to_fault(error)))
        for request_id in frame.demoted_request_ids:
            self._worker.demote(number, request_id)

    def _frame(self, members: list[pb.Output]) -> pb.ExecuteResponse:
        return pb.ExecuteResponse(outputs=members)

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
            num_proposed_tokens=status.num_proposed_tokens,
            num_accepted_tokens=status.num_accepted_tokens,
        )
