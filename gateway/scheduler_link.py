"""The gateway's one long-lived Submit stream: requests up, placements and refusals down.

Owns the requests that wait for a placement. When the stream is lost it comes back with bounded backoff and the
waiting requests are submitted again; those already placed are not its business any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.outbox import Outbox
from headrace.chassis.status import from_fault
from headrace.chassis.telemetry import link_to, to_frame
from headrace.core.errors import Unavailable
from headrace.core.prefix import prefix_hashes
from headrace.core.request import Precision
from headrace.core.role import Role
from headrace.gateway.encoding import Encoding, EncodingRelay
from headrace.gateway.frames import exchange
from headrace.gateway.generation import Generation, Placement, left_ms
from headrace.gateway.relay import Relay

log = logging.getLogger(__name__)

MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
PATIENCE_S = 30.0
"""How long waiting requests stay while the scheduler is away."""


Waiting = Relay | EncodingRelay


class SchedulerLink:
    """`run` keeps the stream; `on_change` is told when it is up (True) and when it is lost (False), `on_silent` of
    executors (id, lease in seconds) that the scheduler has not heard of for their lease."""

    def __init__(
        self,
        address: str,
        transport: TransportSettings,
        gateway_id: str,
        on_change: Callable[[bool], Awaitable[None]],
        on_silent: Callable[[str, float], None] = lambda executor_id, lease_s: None,
    ) -> None:
        self._address = address
        self._transport = transport
        self._gateway_id = gateway_id
        self._on_change = on_change
        self._on_silent = on_silent
        self._outbox: Outbox[pb.SubmitRequest] = Outbox(transport.max_message_bytes)
        self._waiting: dict[str, Waiting] = {}
        self._submissions: dict[str, pb.SubmitRequest] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def placement(self, relay: Waiting) -> Placement:
        """Submits, and waits for the placement. Raises what failed the request.

        Where no placement is returned the scheduler is told so without a wait, also if one has come meanwhile.
        """
        wire_id = relay.generation.wire_id
        self._waiting[wire_id] = relay
        self._submit(relay)
        try:
            return await relay.placement()
        except BaseException:
            submission = self._submissions[wire_id]
            waits = self._waiting.pop(wire_id, None) is not None
            if relay.served_by is not None or (waits and not self._outbox.discard(submission)):
                self.release(wire_id)
            raise
        finally:
            del self._submissions[wire_id]

    def release(self, wire_id: str) -> None:
        """Tells the scheduler that a request will not run where it is placed."""
        self._outbox.put(pb.SubmitRequest(cancelled_request_ids=[wire_id]))

    def _submit(self, relay: Waiting) -> None:
        now = asyncio.get_running_loop().time()
        submission = pb.SubmitRequest(submissions=[_submission(relay.generation, now)])
        self._submissions[relay.generation.wire_id] = submission
        self._outbox.put(submission)

    async def run(self) -> None:
        """Keeps the stream up until cancelled."""
        loop, delay_s = asyncio.get_running_loop(), MIN_BACKOFF_S
        async with open_channel(self._address, self._transport, Role.SCHEDULER) as channel:
            stub = SchedulerServiceStub(channel)
            while True:
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await channel.channel_ready()
                except TimeoutError:
                    self._give_up()
                    continue
                self._start_over()
                began = loop.time()
                await self._on_change(True)
                try:
                    await exchange(stub.Submit(), self._outbox, self._receive)
                finally:
                    await self._on_change(False)
                log.warning("lost the scheduler at %s", self._address)
                delay_s = MIN_BACKOFF_S if loop.time() - began > MAX_BACKOFF_S else min(delay_s * 2, MAX_BACKOFF_S)
                await asyncio.sleep(delay_s)

    def _start_over(self) -> None:
        """A new stream knows nothing: it gets all that waits, after what was given up and did not go out."""
        given_up = [part for part in self._outbox.take_back() if part.cancelled_request_ids]
        self._outbox.put(pb.SubmitRequest(gateway_id=self._gateway_id))
        for part in given_up:
            self._outbox.put(part)
        for relay in self._waiting.values():
            self._submit(relay)

    def _give_up(self) -> None:
        for relay in self._waiting.values():
            relay.fail(Unavailable(f"the scheduler has been away for {PATIENCE_S:g} s"))

    def _receive(self, frame: pb.SubmitResponse) -> None:
        for member in frame.placements:
            relay = self._waiting.pop(member.request_id, None)
            if relay is None or not relay.place(_placement(member)):  # it ended while its placement was on the way
                self.release(member.request_id)
        for refusal in frame.refusals:
            relay = self._waiting.pop(refusal.request_id, None)
            if relay is not None:
                relay.decline(from_fault(refusal.fault))
        for silent in frame.silent_executors:
            self._on_silent(silent.executor_id, silent.lease_ms / 1000)


def _submission(generation: Generation | Encoding, now: float) -> pb.Submission:
    sampling = generation.sampling if isinstance(generation, Generation) else None
    return pb.Submission(
        request_id=generation.wire_id,
        model=generation.model.name,
        qos_class=int(generation.qos),  # type: ignore[arg-type]
        tenant=generation.tenant,
        prompt_tokens=len(generation.token_ids),
        max_output_tokens=sampling.max_tokens if sampling else 0,
        n=generation.num_open_answers if isinstance(generation, Generation) else 1,
        precision=int(generation.precision),  # type: ignore[arg-type]
        deadline_ms=left_ms(generation.deadline, now),
        trace=to_frame(generation.trace),
        answer_tokens=generation.known_tokens if isinstance(generation, Generation) else 0,
        prefix_hashes=prefix_hashes(generation.model.name, generation.token_ids.astype("<u4", copy=False).tobytes()),
    )


def _placement(member: pb.Placement) -> Placement:
    return Placement(
        executor_id=member.executor_id,
        address=member.executor_address,
        batch_id=member.batch_id,
        batch_size=member.batch_size,
        padded_tokens=member.padded_tokens,
        precision=Precision.known(member.precision),
        batch_trace=link_to(member.batch_trace),
        displaced=member.displaced,
    )
