"""An executor of any kind as a service: worker, Execute streams, membership; drained in order at the end."""

import asyncio
import contextlib
import gc
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

from headrace.api.executor.v1 import executor_pb2, executor_pb2_grpc
from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.server import ServerHandle, serve
from headrace.core.role import Role
from headrace.executor.enlist import EnlistLink, Reported
from headrace.executor.sessions import Cancelling, SessionService

SERVICE = executor_pb2.DESCRIPTOR.services_by_name["ExecutorService"].full_name


class Addresses(Protocol):
    """The settings that every kind of executor has."""

    @property
    def listen(self) -> str: ...

    @property
    def advertise(self) -> str: ...

    @property
    def scheduler(self) -> str: ...


class LoopWorker(Cancelling, Reported, AbstractContextManager[Any], Protocol):
    """A worker whose thread runs within its block."""


AnyService = TypeVar("AnyService", bound=SessionService[Any, Any])


@asynccontextmanager
async def serving(
    own: Addresses,
    transport: TransportSettings,
    enlistment: scheduler_pb2.Enlistment,
    new_service: Callable[[str, EnlistLink], AnyService],
    new_worker: Callable[[AnyService, Callable[[Exception], None]], LoopWorker],
) -> AsyncIterator[ServerHandle]:
    """Serves what has been loaded; ready when enlisted with the scheduler.

    `enlistment` says what there is, without id and address. `new_service(executor id, link)` and `new_worker(service,
    failed)` are called once each; whatever the worker reports as `failed` ends the block.
    """
    gc.collect()
    gc.freeze()  # what is loaded stays; no collection walks it during a step
    executor_id = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()
    listening = ""

    def enlisted() -> scheduler_pb2.Enlistment:
        whole = scheduler_pb2.Enlistment(executor_id=executor_id, address=own.advertise or listening)
        whole.MergeFrom(enlistment)
        return whole

    def breaks(error: Exception) -> None:
        if not broken.done():
            broken.set_exception(error)

    def failed(error: Exception) -> None:
        loop.call_soon_threadsafe(breaks, error)

    async with open_channel(own.scheduler, transport, Role.SCHEDULER) as channel:
        link = EnlistLink(channel, enlisted, lambda: worker)
        service = new_service(executor_id, link)
        worker = new_worker(service, failed)
        service.worker = worker
        with worker:
            async with serve(
                own.listen,
                transport,
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
                            async with asyncio.timeout(transport.drain_s):
                                await link.idle.wait()
                        service.close_sessions()
                        watch.cancel()
                        enlisting.cancel()


async def _raise_when(broken: asyncio.Future[None]) -> None:
    await broken


async def _follow(link: EnlistLink, handle: ServerHandle) -> None:
    """Ready from the first enlistment on: streams that run go on while the scheduler is away."""
    await link.enlisted.wait()
    await handle.set_ready(True)
