"""Wires an encoder's executor: engine, encode loop, Execute streams.

The scheduler counts a text as one slot and one block of the model's whole context. Where texts share rows there are
slots for MOST_A_ROW of them in each.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from opentelemetry.trace import Tracer

from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.chassis.config import AUTO_ENCODER, EncoderSettings, Settings
from headrace.chassis.metrics import Metrics
from headrace.chassis.server import ServerHandle
from headrace.core.errors import ConfigError
from headrace.executor.device_meters import watch_device
from headrace.executor.encoding.codec import to_loaded
from headrace.executor.encoding.rectangles import MOST_A_ROW
from headrace.executor.encoding.service import EncoderService
from headrace.executor.encoding.worker import EncodeWorker
from headrace.executor.engines.encoder import Encoder
from headrace.executor.enlist import EnlistLink
from headrace.executor.hardware.defaults import filled_encoder, host
from headrace.executor.hardware.readings import device_reading
from headrace.executor.meters import StepMeters, watch_encoder, weight_bytes
from headrace.executor.serving import serving
from headrace.models.manifest import verify
from headrace.models.repository import ModelEntry, Repository


@asynccontextmanager
async def start(settings: Settings, tracer: Tracer, metrics: Metrics | None = None) -> AsyncIterator[ServerHandle]:
    """Loads the model, then serves; ready when enlisted with the scheduler.

    Raises ModelNotFound, EngineNotReady, ConfigError.
    """
    own = filled_encoder(settings.encoder, host())
    if own.model in ("", AUTO_ENCODER):
        raise ConfigError("encoder.model: no model is named")
    entry = Repository(settings.models.home).get(own.model)
    if entry.info.kind != "encoder":
        raise ConfigError(f"encoder.model: {entry.info.name} is no encoder")
    await asyncio.to_thread(verify, entry)
    encoder = await asyncio.to_thread(_load, own, entry)
    num_slots = own.batch_rows * own.batches_ahead * (MOST_A_ROW if encoder.spec.packs else 1)
    metrics = metrics or Metrics("encoder")
    meters = StepMeters(metrics, weight_bytes(entry.graph))

    def new_service(executor_id: str, link: EnlistLink) -> EncoderService:
        return EncoderService(
            executor_id, entry.info.name, num_slots, tracer, link, settings.transport.max_message_bytes
        )

    def new_worker(service: EncoderService, failed: Callable[[Exception], None]) -> EncodeWorker:
        worker = EncodeWorker(
            encoder,
            batch_rows=own.batch_rows,
            straggler_s=own.straggler_ms / 1000,
            deliver=service.deliver,
            failed=failed,
            stepped=meters.stepped,
        )
        watch_encoder(metrics, num_slots, lambda: worker.status().num_running)
        return worker

    try:
        enlistment = scheduler_pb2.Enlistment(
            models=[to_loaded(entry.info.name, entry.info.digest, encoder.spec, own.batch_rows)],
            num_slots=num_slots,
            num_blocks=num_slots,
            block_tokens=encoder.spec.context_tokens,
            architecture=encoder.spec.architecture,
        )
        with device_reading(encoder) as read:
            watch_device(metrics, read)
            async with serving(own, settings.transport, enlistment, new_service, new_worker) as handle:
                yield handle
    finally:
        encoder.close()


def _load(own: EncoderSettings, entry: ModelEntry) -> Encoder:
    try:
        from headrace.executor.engines.openvino_encoder import OpenVinoEncoder
    except ImportError as error:
        raise ConfigError(f"encoder: {error}; install headrace[executor-openvino]") from error
    return OpenVinoEncoder(entry, precision=own.precision, threads=own.threads, packing=own.packing)
