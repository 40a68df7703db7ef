"""An encoder's Execute streams: texts in, vectors or scores out.

Runs on the event loop; the worker's thread hands results over once a batch.
"""

from collections.abc import Sequence

from opentelemetry.trace import Tracer

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.chassis.status import to_fault
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.executor.encoding.codec import to_encoded, to_task
from headrace.executor.encoding.spans import record
from headrace.executor.encoding.task import Done
from headrace.executor.encoding.worker import EncodeWorker
from headrace.executor.enlist import EnlistLink
from headrace.executor.sessions import SessionService


class EncoderService(SessionService[pb.Encoded, EncodeWorker]):
    """`num_slots` texts may be placed here at once."""

    def __init__(
        self, executor_id: str, model: str, num_slots: int, tracer: Tracer, enlist: EnlistLink, max_message_bytes: int
    ) -> None:
        super().__init__(executor_id, model, tracer, enlist, max_message_bytes)
        self._num_slots = num_slots

    def deliver(self, dones: Sequence[Done]) -> None:
        """From the worker's thread: one hand-over a batch."""
        self._loop.call_soon_threadsafe(self._distribute, dones)

    def _distribute(self, dones: Sequence[Done]) -> None:
        for done in dones:
            if done.task.session in self._sessions:
                self._send(done.task.session, to_encoded(done))
        self._enlist.report([], [done.task.request_id for done in dones])
        record(self._tracer, self._executor_id, dones)

    def _take_in(self, frame: pb.ExecuteRequest, number: int) -> None:
        for encode in frame.encodes:
            try:
                self._check_taken(encode.model)
                self._worker.submit(to_task(encode, number))
                self._enlist.report([encode.request_id], [])
            except HeadraceError as error:
                self._refuse(number, pb.Encoded(request_id=encode.request_id, fault=to_fault(error)))
        for start in frame.starts:
            fault = to_fault(InvalidRequest(f"model {self._model} is an encoder", field="model", limit="decoder"))
            self._refuse(number, pb.Encoded(request_id=start.request_id, fault=fault))

    def _frame(self, members: list[pb.Encoded]) -> pb.ExecuteResponse:
        return pb.ExecuteResponse(encoded=members)

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
