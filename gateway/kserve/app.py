"""The door's life: its parts, and what it holds, from the gateway's start to its end."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.trace import NoOpTracer, Tracer

from headrace.api.inference import inference_pb2
from headrace.api.inference.inference_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from headrace.chassis.config import Settings
from headrace.gateway.kserve.inference import Inference
from headrace.gateway.kserve.readiness import open_loaded
from headrace.gateway.kserve.servicer import InferenceService
from headrace.gateway.kserve.shared_memory import open_regions
from headrace.gateway.kserve.statistics import Statistics
from headrace.gateway.kserve.streams import Streams
from headrace.gateway.ports import TextModels
from headrace.gateway.servicer import GatewayService
from headrace.gateway.tenants.callers import Callers

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name


@dataclass(frozen=True, slots=True)
class Door:
    """`leave` is called when the gateway begins to: streams take no more requests."""

    service: InferenceService
    leave: Callable[[], None]

    def register(self, server: grpc.aio.Server) -> None:
        add_GRPCInferenceServiceServicer_to_server(self.service, server)


@asynccontextmanager
async def open_door(
    settings: Settings,
    core: GatewayService,
    texts: TextModels,
    callers: Callers,
    tracer: Tracer,
    ready: Callable[[], bool],
) -> AsyncIterator[Door]:
    """Holds the channel to the scheduler and the registered regions until the block ends. `ready` is the gateway's."""
    statistics, streams = Statistics(), Streams(settings.gateway.longest_unread_s)
    with open_regions(settings.kserve.shared_memory_prefix, settings.transport.max_message_bytes) as regions:
        async with open_loaded(settings.gateway.scheduler, settings.transport) as loaded:
            service = InferenceService(
                Inference(core, texts, regions, statistics),
                streams,
                texts,
                callers,
                ready,
                loaded,
                regions,
                statistics,
                traced=not isinstance(tracer, NoOpTracer),
            )
            yield Door(service, streams.leave)
