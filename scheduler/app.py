"""Wires a scheduler: the owner task around the policy, gateways' and executors' streams, spans."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from opentelemetry.trace import Tracer

from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.api.scheduler.v1.scheduler_pb2_grpc import (
    add_SchedulerAdminServiceServicer_to_server,
    add_SchedulerServiceServicer_to_server,
)
from headrace.chassis.config import SchedulerSettings, Settings
from headrace.chassis.metrics import Metrics
from headrace.chassis.server import ServerHandle, serve
from headrace.chassis.telemetry import to_frame
from headrace.scheduler.admin import SchedulerAdminService
from headrace.scheduler.codec import to_placement, to_refusal, to_silent
from headrace.scheduler.dispatch import Gateways
from headrace.scheduler.leadership.leading import leading
from headrace.scheduler.leadership.opening import open_lease
from headrace.scheduler.loop import SchedulerLoop
from headrace.scheduler.membership import Members
from headrace.scheduler.meters import SchedulerMeters
from headrace.scheduler.policy.commands import Command, Dismiss, Dispatch, Drop, Refuse, Renew, Resume
from headrace.scheduler.policy.events import Drain
from headrace.scheduler.policy.limits import Bounds, BucketRule, Limits, Order
from headrace.scheduler.policy.state import State
from headrace.scheduler.servicer import SchedulerService
from headrace.scheduler.tracing import QueueSpans

SERVICES = tuple(service.full_name for service in scheduler_pb2.DESCRIPTOR.services_by_name.values())


@asynccontextmanager
async def start(settings: Settings, tracer: Tracer, metrics: Metrics | None = None) -> AsyncIterator[ServerHandle]:
    """Serves, ready at once, or once it leads where several schedulers share a lease. At the end what waits is refused
    (Draining) and every stream ends.

    Raises ConfigError where the address cannot be bound, Unavailable within the block once the lease is lost.
    """
    scheduler = Scheduler(
        settings.scheduler, tracer, metrics or Metrics("scheduler"), settings.transport.max_message_bytes
    )

    def register(server: grpc.aio.Server) -> None:
        add_SchedulerServiceServicer_to_server(scheduler.service, server)
        add_SchedulerAdminServiceServicer_to_server(scheduler.admin, server)

    leadership_s = settings.scheduler.leadership_ms / 1000
    with open_lease(settings.scheduler) as lease:
        async with (
            leading(lease, leadership_s),
            serve(settings.scheduler.listen, settings.transport, register, SERVICES) as handle,
            asyncio.TaskGroup() as group,
        ):
            owner = group.create_task(scheduler.loop.run())
            await handle.set_ready(True)
            try:
                yield handle
            finally:
                await handle.set_ready(False)
                scheduler.drain()
                owner.cancel()


class Scheduler:
    """The parts of a scheduler, put together; `carry_out` is where commands become effects."""

    def __init__(self, settings: SchedulerSettings, tracer: Tracer, metrics: Metrics, max_frame_bytes: int) -> None:
        bounds = Bounds(settings.max_waiting_requests, settings.max_waiting_tokens)
        limits = Limits(
            bounds,
            lease_s=settings.lease_ms / 1000,
            batch_tokens=settings.batch_tokens,
            grace_s=settings.grace_ms / 1000,
            order=Order(settings.order),
            realtime_wait_s=settings.realtime_wait_s,
            longest_wait_s=settings.longest_wait_s,
            batch_share=settings.batch_share,
            batch_floor=settings.batch_floor,
            quota_load=settings.quota_load,
            max_displacements=settings.max_displacements,
            window_ms=settings.window_ms,
            buckets=BucketRule(settings.buckets),
            precision_rules=settings.precision_rules,
        )
        self._state = State(limits, epoch=secrets.token_hex(4))
        self.loop = SchedulerLoop(self._state, self._carry_out)
        self._gateways = Gateways(self.loop.post, max_frame_bytes)
        self._members = Members(self.loop.post, max_frame_bytes)
        self._meters = SchedulerMeters(metrics)
        self._meters.watch(self.loop)
        self._spans = QueueSpans(tracer, self._meters.waited)
        self.service = SchedulerService(self.loop.post, self._gateways, self._members, self._spans)
        self.admin = SchedulerAdminService(self.loop)

    def drain(self) -> None:
        """Refuses what waits, then ends all streams: gateways and executors turn to the next scheduler."""
        self.loop.post(Drain())
        self.loop.settle()
        self._gateways.close()
        self._members.close()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Dispatch():
                self._meters.dispatched(command)
                batch_trace = to_frame(self._spans.dispatched(command))
                for member in command.members:
                    self._gateways.send(member.request.gateway_id, to_placement(command, member, batch_trace))
            case Refuse(request, refusal):
                error = refusal.error()
                self._meters.refused(request, error)
                self._spans.refused(request, error)
                self._gateways.send(request.gateway_id, to_refusal(request.request_id, error))
            case Drop(request):
                self._spans.dropped(request)
            case Resume(executor_id, request_ids):
                self._members.resume(executor_id, request_ids)
            case Renew(executor_id, lease_s):
                self._members.renew(executor_id, lease_s)
            case Dismiss(executor_id, refusal):
                self._members.dismiss(executor_id, refusal.error())
                self._gateways.tell(to_silent(executor_id, self._state.limits.lease_s))
