"""Wires a decoder's executor: engine, step loop, Execute streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from opentelemetry.trace import Tracer

from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.chassis.config import ExecutorSettings, Settings
from headrace.chassis.metrics import Metrics
from headrace.chassis.server import ServerHandle
from headrace.core.errors import ConfigError
from headrace.core.model import ModelInfo
from headrace.core.request import QosClass
from headrace.executor.device_meters import watch_device
from headrace.executor.engines.protocol import EngineSpec, ExpertEngine
from headrace.executor.engines.registry import load_engine, served
from headrace.executor.enlist import EnlistLink
from headrace.executor.experts.counts import ExpertCounts
from headrace.executor.guide import Guides
from headrace.executor.hardware.defaults import filled_decoder, host
from headrace.executor.hardware.readings import device_reading
from headrace.executor.meters import DecoderMeters, watch_experts, weight_bytes
from headrace.executor.prefixes import prefix_cache
from headrace.executor.service import ExecutorService
from headrace.executor.serving import serving
from headrace.executor.warm_up import warm_up
from headrace.executor.worker import Worker
from headrace.models.grammar import tokens_of
from headrace.models.manifest import verify
from headrace.models.repository import Repository


@asynccontextmanager
async def start(settings: Settings, tracer: Tracer, metrics: Metrics | None = None) -> AsyncIterator[ServerHandle]:
    """Loads the model, then serves; ready when enlisted with the scheduler.

    Raises ModelNotFound, EngineNotReady, ConfigError.
    """
    own = settings.executor
    if len(own.models) != 1:
        raise ConfigError("executor.models: one model an executor, for now")
    entry = Repository(settings.models.home).get(own.models[0])
    if entry.info.kind != "decoder":
        raise ConfigError(f"executor.models: {entry.info.name} is no decoder")
    entry = served(own, entry)
    own = filled_decoder(own, entry, settings.models.home, host())
    if own.step_tokens < own.num_slots + 2:
        raise ConfigError(
            f"executor.step_tokens: {own.step_tokens} leaves no room for prefills beside {own.num_slots} slots"
        )
    await asyncio.to_thread(verify, entry, served_only=True)
    engine = await asyncio.to_thread(load_engine, own, entry)
    read_bytes = weight_bytes(entry.graph) if own.engine == "openvino" else 0
    metrics = metrics or Metrics("executor")
    meters = DecoderMeters(metrics, engine.spec, read_bytes)
    watch_experts(metrics, engine.expert_counts if isinstance(engine, ExpertEngine) else ExpertCounts)
    meters.serves(entry.info.name)

    def new_service(executor_id: str, link: EnlistLink) -> ExecutorService:
        return ExecutorService(
            executor_id,
            entry.info.name,
            tracer,
            link,
            settings.transport.max_message_bytes,
            pieces_per_s=own.pieces_per_s,
            cache_by_tenant=own.cache_scope == "tenant",
        )

    def new_worker(service: ExecutorService, failed: Callable[[Exception], None]) -> Worker:
        worker = Worker(
            engine,
            entry.info.eos_token_ids,
            num_slots=own.num_slots,
            step_tokens=own.step_tokens,
            deliver=service.deliver,
            failed=failed,
            cache=prefix_cache(own, entry.info, engine.spec),
            inter_token_s=_pace(own),
            stepped=meters.stepped,
            speculation=own.speculation,
            guides=guides,
            overdue=meters.overdue,
        )
        warm_up(engine, worker.pool, own.num_slots, own.step_tokens)
        meters.watch(own.num_slots, worker.status, lambda: len(worker.paused_ids))
        return worker

    guides = Guides(
        lambda: tokens_of(entry.tokenizer, engine.spec.vocab_size, entry.info.eos_token_ids), engine.spec.vocab_size
    )
    try:
        enlistment = _enlistment(entry.info, engine.spec, own.num_slots)
        with guides, device_reading(engine) as read:
            watch_device(metrics, read)
            async with serving(own, settings.transport, enlistment, new_service, new_worker) as handle:
                yield handle
    finally:
        engine.close()


def _enlistment(model: ModelInfo, spec: EngineSpec, num_slots: int) -> scheduler_pb2.Enlistment:
    loaded = scheduler_pb2.LoadedModel(
        name=model.name,
        precision=int(spec.precision),  # type: ignore[arg-type]
        digest=model.digest,
        context_tokens=spec.context_tokens,
    )
    return scheduler_pb2.Enlistment(
        models=[loaded],
        num_slots=num_slots,
        num_blocks=spec.num_blocks - spec.min_rows,
        block_tokens=spec.block_tokens,
        architecture=spec.architecture,
    )


def _pace(own: ExecutorSettings) -> dict[int, float]:
    """Seconds between tokens by priority, which is the class's number."""
    paces = {QosClass.REALTIME: own.realtime_inter_token_ms, QosClass.NORMAL: own.normal_inter_token_ms}
    return {int(qos): pace_ms / 1000 for qos, pace_ms in paces.items() if pace_ms}
