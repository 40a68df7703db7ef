"""Wires an encoder's executor: engine, encode loop, Execute streams, membership; drains in order.

The scheduler counts a text as one slot and one block of the model's whole context.
"""

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
from headrace.chassis.config import AUTO_ENCODER, EncoderSettings, Settings
from headrace.chassis.server import ServerHandle, serve
from headrace.core.errors import ConfigError
from headrace.executor.encoding.codec import to_loaded
from headrace.executor.encoding.service import EncoderService
from headrace.executor.encoding.worker import EncodeWorker
from headrace.executor.engines.encoder import Encoder
from headrace.executor.enlist import EnlistLink
from headrace.models.repository import ModelEntry, Repository

SERVICE = executor_pb2.DESCRIPTOR.services_by_name["ExecutorService"].full_name


@asynccontextmanager
async def start(settings: Settings, tracer: Tracer) -> AsyncIterator[ServerHandle]:
    """Loads the model, then serves; ready when enlisted with the scheduler.

    Raises ModelNotFound, EngineNotReady, ConfigError.
    """
    own = settings.encoder
    if own.model in ("", AUTO_ENCODER):
        raise ConfigError("encoder.model: no model is named")
    entry = Repository(settings.models.home).get(own.model)
    if entry.info.kind != "encoder":
        raise ConfigError(f"encoder.model: {entry.info.name} is no encoder")
    encoder = await asyncio.to_thread(_load, own, entry)
    gc.collect()
    gc.freeze()
    executor_id = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    num_slots = own.batch_rows * own.batches_ahead
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()
    listening = ""

    def enlistment() -> scheduler_pb2.Enlistment:
        return scheduler_pb2.Enlistment(
            executor_id=executor_id,
            address=own.advertise or listening,
            models=[to_loaded(entry.info.name, entry.info.digest, encoder.spec, own.batch_rows)],
            num_slots=num_slots,
            num_blocks=num_slots,
            block_tokens=encoder.spec.context_tokens,
        )

    def breaks(error: Exception) -> None:
        if not broken.done():
            broken.set_exception(error)

    def failed(error: Exception) -> None:
        loop.call_soon_threadsafe(breaks, error)

    async with open_channel(own.scheduler, settings.transport) as channel:
        link = EnlistLink(channel, enlistment, lambda: worker)
        service = EncoderService(
            executor_id, entry.info.name, num_slots, tracer, link, settings.transport.max_message_bytes
        )
        worker = EncodeWorker(
            encoder,
            batch_rows=own.batch_rows,
            straggler_s=own.straggler_ms / 1000,
            deliver=service.deliver,
            failed=failed,
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
            encoder.close()


def _load(own: EncoderSettings, entry: ModelEntry) -> Encoder:
    try:
        from headrace.executor.engines.openvino_encoder import OpenVinoEncoder
    except ImportError as error:
        raise ConfigError(f"encoder: {error}; install headrace[executor-openvino]") from error
    return OpenVinoEncoder(entry, precision=own.precision, threads=own.threads)


async def _raise_when(broken: asyncio.Future[None]) -> None:
    await broken


async def _follow(link: EnlistLink, handle: ServerHandle) -> None:
    await link.enlisted.wait()
    await handle.set_ready(True)
