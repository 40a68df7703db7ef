"""The gateway's life: links up, server up, ready while the scheduler is there; drained before the links go."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from opentelemetry.trace import Tracer

from headrace.api.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from headrace.chassis.config import Settings
from headrace.chassis.metrics import Metrics
from headrace.chassis.server import ServerHandle, serve
from headrace.core.errors import ConfigError
from headrace.gateway.admission import Admission
from headrace.gateway.background import Background
from headrace.gateway.cache.answers import AnswerCache
from headrace.gateway.constraint_check import open_constraint_checks
from headrace.gateway.executor_link import ExecutorPool
from headrace.gateway.kserve import app as kserve
from headrace.gateway.making import Maker
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.output_check import open_output_checks
from headrace.gateway.ports import Preparer, TextModels
from headrace.gateway.results.opening import open_cache, open_store
from headrace.gateway.scheduler_link import SchedulerLink
from headrace.gateway.screen_gate import Screener, ScreenGate
from headrace.gateway.servicer import GatewayService, InUse
from headrace.gateway.takeover import Takeovers
from headrace.gateway.tenants.callers import Callers
from headrace.gateway.tenants.quotas import Quotas
from headrace.gateway.tenants.windows import open_windows
from headrace.models.repository import Repository

if TYPE_CHECKING:
    from headrace.gateway.openai.server import HttpHandle

SERVICES = (gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name, kserve.SERVICE)


@dataclass(frozen=True, slots=True)
class GatewayHandle(ServerHandle):
    """A running gateway; `in_use()` counts what its calls hold, `http` is the address of that door, '' for none."""

    in_use: Callable[[], InUse]
    http: str = ""


@asynccontextmanager
async def start(
    settings: Settings,
    tracer: Tracer,
    preparer: Preparer,
    texts: TextModels,
    screener: Screener | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[GatewayHandle]:
    """Serves until the block ends, then waits for running calls up to transport.drain_s. Ready while the scheduler
    stream is up. Raises ConfigError where the address cannot be bound or the file of keys is faulty; a link that
    breaks by a fault of ours cancels the block.
    """
    handle: ServerHandle | None = None
    meters, admission = GatewayMeters(metrics or Metrics("gateway")), Admission(settings.gateway)
    callers = Callers(settings.tenants)

    async def report(up: bool) -> None:
        if handle is not None:
            await handle.set_ready(up)

    def ready() -> bool:
        return handle is not None and handle.health.ready

    async with (
        open_output_checks(settings.screen.output, Repository(settings.models.home)) as checks,
        open_store(settings.results, settings.models.home) as store,
        open_cache(settings.cache, settings.models.home) as kept,
        open_windows(settings.tenants) as windows,
        open_constraint_checks(meters) as constraints,
        asyncio.TaskGroup() as tasks,
    ):
        scheduler = SchedulerLink(
            settings.gateway.scheduler,
            settings.transport,
            f"gateway-{secrets.token_hex(4)}",
            report,
            lambda executor_id, lease_s: executors.suspect(executor_id, lease_s),
        )
        executors = ExecutorPool(tasks, settings.transport, scheduler.release)
        background = Background(tasks, store, settings.results, executors.demote)
        gate = ScreenGate(settings.screen, screener, texts)
        maker = Maker(
            preparer,
            texts,
            scheduler,
            executors,
            settings.gateway.max_buffered_frames,
            settings.gateway.max_failovers,
            checks,
        )
        takeovers = Takeovers(store, settings.results, background, maker, admission, gate, texts, tracer, meters, ready)
        service = GatewayService(
            tracer,
            meters,
            preparer,
            texts,
            admission,
            scheduler,
            executors,
            gate,
            maker,
            settings.gateway.max_failovers,
            background,
            settings.sla,
            callers,
            Quotas(windows),
            settings.gateway.longest_unread_s,
            AnswerCache(kept, settings.cache, tasks) if settings.cache.enabled else None,
            constraints,
            settings.telemetry.record_prompts,
        )
        meters.watch(
            settings.gateway,
            admission,
            num_waiting=lambda: scheduler.num_waiting,
            num_running=lambda: executors.num_running,
            num_unread=lambda: executors.num_unread,
        )

        def register(server: grpc.aio.Server) -> None:
            gateway_pb2_grpc.add_GatewayServiceServicer_to_server(service, server)
            door.register(server)

        async with (
            kserve.open_door(settings, service, texts, callers, tracer, ready) as door,
            _http(settings, service, background, texts, callers, ready) as http,
            serve(
                settings.gateway.listen,
                settings.transport,
                register,
                SERVICES,
                ask_callers=settings.gateway.client_certificates,
            ) as server,
        ):
            handle = server
            submitting = tasks.create_task(scheduler.run(), name="submit")
            watching = tasks.create_task(callers.watch(), name="keys")
            taking = tasks.create_task(takeovers.run(), name="takeovers")
            try:
                address = http.address if http else ""
                yield GatewayHandle(server.address, server.health, server.services, service.in_use, address)
            finally:
                handle = None  # leaving: never ready again
                door.leave()
                if http:
                    http.leave()
                taking.cancel()
                leave_by = asyncio.get_running_loop().time() + settings.transport.drain_s
        await background.drain(leave_by)
        submitting.cancel()
        watching.cancel()
        executors.close()


def _http(
    settings: Settings,
    service: GatewayService,
    background: Background,
    texts: TextModels,
    callers: Callers,
    ready: Callable[[], bool],
) -> "AbstractAsyncContextManager[HttpHandle | None]":
    """OpenAI's door where it is asked for. Its libraries are an extra, so it is imported here."""
    if not settings.gateway.http_listen:
        return nullcontext()
    try:
        from headrace.gateway.openai.app import open_door
    except ImportError as error:
        raise ConfigError(f"gateway.http_listen: pip install 'headrace[http]' ({error})") from error
    return open_door(settings, service, background, texts, callers, ready)
