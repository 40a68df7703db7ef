"""The gateways' side: who is connected, and the answers that go down to each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.chassis.outbox import MAX_FRAME_BYTES, Outbox
from headrace.core.errors import Cancelled, Draining, InvalidRequest
from headrace.scheduler.policy.events import GatewayLost, Occurrence, Withdrawn

Answer = pb.Placement | pb.Refusal | pb.SilentExecutor


class Gateways:
    """One outbox a connected gateway. A gateway that connects anew takes over from its old stream."""

    def __init__(self, post: Callable[[Occurrence], None], max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._post = post
        self._max_frame_bytes = max_frame_bytes
        self._outboxes: dict[str, Outbox[Answer]] = {}
        self._closed = False

    @contextmanager
    def connected(self, gateway_id: str) -> Iterator[Outbox[Answer]]:
        """The gateway's outbox while its stream lasts. Raises InvalidRequest without an id, Draining after `close`."""
        if not gateway_id:
            raise InvalidRequest("the first frame names no gateway", field="gateway_id", limit="not empty")
        if self._closed:
            raise Draining("the scheduler is leaving")
        if old := self._outboxes.pop(gateway_id, None):
            self._lost(gateway_id, old)
            old.close(Cancelled(f"gateway {gateway_id} has connected anew"))
        outbox = self._outboxes[gateway_id] = Outbox(self._max_frame_bytes)
        try:
            yield outbox
        finally:
            if self._outboxes.get(gateway_id) is outbox:
                del self._outboxes[gateway_id]
                self._lost(gateway_id, outbox)

    def send(self, gateway_id: str, answer: Answer) -> None:
        """To the gateway if it is still there; a placement that nobody hears of is taken back."""
        outbox = self._outboxes.get(gateway_id)
        if outbox is not None:
            outbox.put(answer)
        elif isinstance(answer, pb.Placement):
            self._post(Withdrawn(gateway_id, answer.request_id))

    def tell(self, news: pb.SilentExecutor) -> None:
        """To every gateway."""
        for outbox in self._outboxes.values():
            outbox.put(news)

    def close(self) -> None:
        """Ends every stream after what has gathered for it, and takes no more."""
        self._closed = True
        for outbox in self._outboxes.values():
            outbox.close(Draining("the scheduler is leaving"))

    def _lost(self, gateway_id: str, outbox: Outbox[Answer]) -> None:
        self._post(GatewayLost(gateway_id))
        for answer in outbox.take_back():
            if isinstance(answer, pb.Placement):
                self._post(Withdrawn(gateway_id, answer.request_id))
