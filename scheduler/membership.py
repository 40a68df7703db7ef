"""The executors' side: who is connected, and the leases and resumptions that go down to each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.chassis.outbox import MAX_FRAME_BYTES, Outbox
from headrace.core.errors import Cancelled, Draining, HeadraceError
from headrace.scheduler.policy.events import ExecutorEnlisted, ExecutorLost, Occurrence


class Members:
    """One outbox a connected executor. One that connects anew takes over from its old stream."""

    def __init__(self, post: Callable[[Occurrence], None], max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._post = post
        self._max_frame_bytes = max_frame_bytes
        self._outboxes: dict[str, Outbox[pb.EnlistResponse]] = {}
        self._closed = False

    @contextmanager
    def enlisted(self, event: ExecutorEnlisted) -> Iterator[Outbox[pb.EnlistResponse]]:
        """The executor's outbox while its stream lasts. Raises Draining after `close`."""
        if self._closed:
            raise Draining("the scheduler is leaving")
        executor_id = event.executor_id
        if old := self._outboxes.pop(executor_id, None):
            old.close(Cancelled(f"executor {executor_id} has connected anew"))
        outbox = self._outboxes[executor_id] = Outbox(self._max_frame_bytes)
        self._post(event)
        try:
            yield outbox
        finally:
            if self._outboxes.get(executor_id) is outbox:
                del self._outboxes[executor_id]
                self._post(ExecutorLost(executor_id))

    def renew(self, executor_id: str, lease_s: float) -> None:
        if outbox := self._outboxes.get(executor_id):
            outbox.put(pb.EnlistResponse(lease_ms=round(lease_s * 1000)))

    def resume(self, executor_id: str, request_ids: Sequence[str]) -> None:
        """These displaced requests of the executor go on."""
        if outbox := self._outboxes.get(executor_id):
            outbox.put(pb.EnlistResponse(resumed_request_ids=request_ids))

    def dismiss(self, executor_id: str, error: HeadraceError) -> None:
        """Ends the executor's stream; it may enlist again."""
        if outbox := self._outboxes.get(executor_id):
            outbox.close(error)

    def close(self) -> None:
        """Ends every stream, and takes no more."""
        self._closed = True
        for outbox in self._outboxes.values():
            outbox.close(Draining("the scheduler is leaving"))
