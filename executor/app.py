"""Wires an executor: engine, step loop, Execute streams, membership; drains in order."""

import asyncio
import contextlib
import gc
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.trace import Tracer

from headrace.api.executor.v1 import executor_pb2, executor_pb2_grpc
from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.chassis.channel import open_channel
from headrace.chassis.config import ExecutorSettings, Settings
from headrace.chassis.server import ServerHandle, serve
from headrace.core.errors import ConfigError
from headrace.core.request import QosClass
from headrace.executor.engines.registry import load_engine
from headrace.executor.enlist import EnlistLink
from headrace.executor.prefixes import prefix_cache
from headrace.executor.service import ExecutorService
from headrace.executor.worker import Worker
from headrace.models.repository import Repository

SERVICE = executor_pb2.DESCRIPTOR.services_by_name["ExecutorService"].full_name


@asynccontextmanager
async def start(settings: Settings, tracer: Tracer) -> AsyncIterator[ServerHandle]:
    """Loads the model, then serves; ready when enlisted with the scheduler.

    Raises ModelNotFound, EngineNotReady, ConfigError.
    """
    own = settings.executor
    if len(own.models) != 1:
        raise ConfigError("executor.models: one model an executor, for now")
    if own.step_tokens < own.num_slots + 2:
        raise ConfigError(
            f"executor.step_tokens: {own.step_tokens} leaves no room for prefills beside {own.num_slots} slots"
        )
    entry = Repository(settings.models.home).get(own.models[0])
    if entry.info.kind != "decoder":
        raise ConfigError(f"executor.models: {entry.info.name} is no decoder")
    engine = await asyncio.to_thread(load_engine, own, entry)
    gc.collect()
    gc.freeze()  # what is loaded stays; no collection walks it during a step
    executor_id = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()
    listening = ""

    def enlistment() -> scheduler_pb2.Enlistment:
        model = scheduler_pb2.LoadedModel(
            name=entry.info.name,
            precision=int(engine.spec.precision),  # type: ignore[arg-type]
            digest=entry.info.digest,
            context_tokens=engine.spec.context_tokens,
        )
        return scheduler_pb2.Enlistment(
            executor_id=executor_id,
            address=own.advertise or listening,
            models=[model],
            num_slots=own.num_slots,
            num_blocks=engine.spec.num_blocks - engine.spec.min_rows,
            block_tokens=engine.spec.block_tokens,
        )

    def breaks(error: Exception) -> None:
        if not broken.done():
            broken.set_exception(error)

    def failed(error: Exception) -> None:
        loop.call_soon_threadsafe(breaks, error)

    async with open_channel(own.scheduler, settings.transport) as channel:
        link = EnlistLink(channel, enlistment, lambda: worker)
        service = ExecutorService(
            executor_id,
            entry.info.name,
            tracer,
            link,
            settings.transport.max_message_bytes,
            cache_by_tenant=own.cache_scope == "tenant",
        )
        worker = Worker(
            engine,
            entry.info.eos_token_ids,
            num_slots=own.num_slots,
            step_tokens=own.step_tokens,
            deliver=service.deliver,
            failed=failed,
            cache=prefix_cache(own, entry.info, engine.spec),
            inter_token_s=_pace(own),
        )
        service.worker = worker
        try:
            with worker:
                async with serve(
                    own.listen,
                    settings.transport,
                    lambda server: executor_pb2_grpc.add_ExecutorServiceServicer_to_server(service, server),
                    [SERVICE],
                ) as handle:
                    listening = handle.address
                    async with asyncio.TaskGroup() as tasks:
                        watch = tasks.create_task(_raise_when(broken))
                        enlisting = tasks.create_task(link.run())
                        readiness = tasks.create_task(_follow(link, handle))
                        try:
                            yield handle
                        finally:
                            readiness.cancel()
                            await handle.set_ready(False)
                            await link.drain()
                            service.draining = True
                            with contextlib.suppress(TimeoutError):
                                async with asyncio.timeout(settings.transport.drain_s):
                                    await link.idle.wait()
                            service.close_sessions()
                            watch.cancel()
                            enlisting.cancel()
        finally:
            engine.close()


def _pace(own: ExecutorSettings) -> dict[int, float]:
    """Seconds between tokens by priority, which is the class's number."""
    paces = {QosClass.REALTIME: own.realtime_inter_token_ms, QosClass.NORMAL: own.normal_inter_token_ms}
    return {int(qos): pace_ms / 1000 for qos, pace_ms in paces.items() if pace_ms}


async def _raise_when(broken: asyncio.Future[None]) -> None:
    await broken


async def _follow(link: EnlistLink, handle: ServerHandle) -> None:
    """Ready from the first enlistment on: streams that run go on while the scheduler is away."""
    await link.enlisted.wait()
    await handle.set_ready(True)
