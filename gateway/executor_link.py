"""Execute streams: one for each executor address, opened by the first request placed there, closed when idle or lost.

Owns the requests that run. Starts and cancellations gather in frames; outputs are handed to their relays.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.outbox import Outbox
from headrace.chassis.status import from_fault
from headrace.core.errors import EngineFault, Unavailable
from headrace.core.request import FinishReason
from headrace.core.role import Role
from headrace.gateway.encoding import EncodingRelay
from headrace.gateway.execute_codec import to_request
from headrace.gateway.frames import exchange
from headrace.gateway.generation import Output, Placement
from headrace.gateway.relay import Relay

log = logging.getLogger(__name__)

IDLE_S = 60.0
"""A stream with no request for this long is closed."""

RETURN_S = 60.0
"""How long requests wait for a lost executor to come back where no other serves their model."""

_FINISH_REASONS: frozenset[int] = frozenset(FinishReason)


class ExecutorLink:
    """The stream to one executor. `ended` is called as soon as it takes no more requests, `release` with each one
    that the executor has not heard of and will not."""

    def __init__(
        self,
        address: str,
        transport: TransportSettings,
        idle_s: float,
        release: Callable[[str], None],
        ended: Callable[["ExecutorLink"], None],
    ) -> None:
        self.address = address
        self._transport = transport
        self._idle_s = idle_s
        self._release = release
        self._ended = ended
        self._outbox: Outbox[pb.ExecuteRequest] = Outbox(transport.max_message_bytes)
        self._running: dict[str, Relay | EncodingRelay] = {}
        self._heard = asyncio.get_running_loop().time()
        self.executor_id = ""
        self._task: asyncio.Task[None] | None = None
        self._rest = asyncio.get_running_loop().call_later(idle_s, self._retire)
        self.served: set[str] = set()
        self.retired = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_unread(self) -> int:
        """Outputs that wait for callers."""
        return sum(relay.num_frames for relay in self._running.values() if isinstance(relay, Relay))

    @contextmanager
    def running(self, relay: Relay | EncodingRelay, placement: Placement) -> Iterator[None]:
        """Starts; if the block ends before the executor is done with it, the executor is told so without a wait, or
        the scheduler where the start has not gone out."""
        wire_id, loop = relay.generation.wire_id, asyncio.get_running_loop()
        self.executor_id = placement.executor_id
        start = to_request(relay.generation, placement, loop.time())
        self._rest.cancel()
        self._running[wire_id] = relay
        self._outbox.put(start)
        try:
            yield
        finally:
            if self._running.pop(wire_id, None) is not None:
                if self._outbox.discard(start):
                    self._release(wire_id)
                elif not relay.executor_done:
                    self._outbox.put(pb.ExecuteRequest(cancelled_request_ids=[wire_id]))
                if not self._running:
                    self._rest = loop.call_later(self._idle_s, self._retire)

    def demote(self, wire_id: str) -> None:
        """The executor is told where the request runs here."""
        if wire_id in self._running:
            self._outbox.put(pb.ExecuteRequest(demoted_request_ids=[wire_id]))

    def suspect(self, lease_s: float) -> None:
        """The scheduler hears nothing from the executor. Where nothing comes here either, for a lease since the last
        frame, it is lost: should it return, it finds its stream closed and its requests elsewhere."""
        heard = self._heard

        def decide() -> None:
            if self._heard == heard and self._task is not None:
                self._task.cancel()

        asyncio.get_running_loop().call_at(heard + lease_s, decide)

    async def run(self) -> None:
        """Keeps the stream until it is lost or idle; then what still runs here loses its executor."""
        self._task = asyncio.current_task()
        try:
            async with open_channel(self.address, self._transport, Role.EXECUTOR) as channel:
                await exchange(ExecutorServiceStub(channel).Execute(), self._outbox, self._receive)
        finally:
            self._rest.cancel()
            self._ended(self)
            if self._running:
                log.warning("lost the executor at %s with %d requests", self.address, len(self._running))
            for wire_id, relay in self._running.items():
                relay.lose(Unavailable(f"the executor at {self.address} was lost"))
                self._release(wire_id)
            self._running.clear()
            for part in self._outbox.take_back():
                for wire_id in part.cancelled_request_ids:  # its start may have been lost on the way
                    self._release(wire_id)

    def _retire(self) -> None:
        self.retired = True
        self._ended(self)
        self._outbox.close()

    def _receive(self, frame: pb.ExecuteResponse) -> None:
        self._heard = asyncio.get_running_loop().time()
        for member in frame.outputs:
            relay = self._running.get(member.request_id)
            if relay is None:
                continue  # it has ended here; the executor hears or has heard of it
            if member.HasField("fault"):
                relay.refused(from_fault(member.fault))
                continue
            if isinstance(relay, EncodingRelay):
                relay.fail(EngineFault("the executor sent tokens for a text"))
                continue
            if member.finish_reason not in _FINISH_REASONS:
                relay.fail(EngineFault(f"the executor sent finish reason {member.finish_reason}, unknown here"))
                continue
            self.served.add(relay.generation.model.name)
            relay.output(
                Output(
                    member.index,
                    member.token_ids,
                    list(member.logprobs),
                    FinishReason(member.finish_reason),
                    member.cached_prompt_tokens,
                )
            )
        for encoded in frame.encoded:
            relay = self._running.get(encoded.request_id)
            if relay is None:
                continue
            if encoded.HasField("fault"):
                relay.refused(from_fault(encoded.fault))
            elif isinstance(relay, EncodingRelay):
                self.served.add(relay.generation.model.name)
                relay.answer(encoded.values)
            else:
                relay.fail(EngineFault("the executor sent values for a prompt"))


class ExecutorPool:
    """The open links by address; their tasks live in `tasks`. `release` tells the scheduler of what cannot run."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        transport: TransportSettings,
        release: Callable[[str], None],
        idle_s: float = IDLE_S,
    ) -> None:
        self._tasks = tasks
        self._transport = transport
        self._release = release
        self._idle_s = idle_s
        self._links: dict[str, tuple[ExecutorLink, asyncio.Task[None]]] = {}
        self._lost_at: dict[str, float] = {}

    @property
    def num_links(self) -> int:
        return len(self._links)

    @property
    def num_running(self) -> int:
        return sum(link.num_running for link, _ in self._links.values())

    @property
    def num_unread(self) -> int:
        return sum(link.num_unread for link, _ in self._links.values())

    def serves(self, model: str) -> bool:
        """An executor that is linked now has answered for this model."""
        return any(model in link.served for link, _ in self._links.values())

    def may_return(self, model: str) -> bool:
        """An executor that answered for this model has been lost lately."""
        lost_at = self._lost_at.get(model)
        return lost_at is not None and asyncio.get_running_loop().time() - lost_at < RETURN_S

    def suspect(self, executor_id: str, lease_s: float) -> None:
        """The scheduler has not heard of this executor for its lease."""
        for link, _ in self._links.values():
            if link.executor_id == executor_id:
                link.suspect(lease_s)

    def link(self, address: str) -> ExecutorLink:
        """The open link, or a new one. Starts its first request in the same breath: a link may close at any wait."""
        if address not in self._links:
            link = ExecutorLink(address, self._transport, self._idle_s, self._release, self._ended)
            self._links[address] = link, self._tasks.create_task(link.run(), name=f"execute {address}")
        return self._links[address][0]

    def demote(self, relay: Relay) -> None:
        """The request goes on at batch priority, here and wherever it may go."""
        relay.demote()
        for link, _ in self._links.values():
            link.demote(relay.generation.wire_id)

    def _ended(self, link: ExecutorLink) -> None:
        if not link.retired:
            self._lost_at |= dict.fromkeys(link.served, asyncio.get_running_loop().time())
        if self._links.get(link.address, (None,))[0] is link:
            del self._links[link.address]

    def close(self) -> None:
        """Ends all links."""
        for _, task in list(self._links.values()):
            task.cancel()
