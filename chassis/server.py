"""The server of a service: standard health and reflection, our interceptors, bounded drain."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.chassis.channel import channel_options
from headrace.chassis.config import TransportSettings
from headrace.chassis.health import Health
from headrace.chassis.interceptors import StatusInterceptor
from headrace.core.errors import ConfigError

_SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class ServerHandle:
    """A running server: the address it is bound to, and its readiness."""

    address: str
    health: Health
    services: tuple[str, ...]

    async def set_ready(self, ready: bool) -> None:
        """Answers Check and Watch for the whole server ('') and each of its services."""
        self.health.set_ready(ready)


@asynccontextmanager
async def serve(
    listen: str, transport: TransportSettings, register: Callable[[grpc.aio.Server], None], services: Sequence[str]
) -> AsyncIterator[ServerHandle]:
    """Serves until the block ends, then takes no new call and waits up to `transport.drain_s` for running ones.

    `register` adds the servicers, `services` are their full names. Not ready until `set_ready(True)`.
    Raises ConfigError where the address cannot be bound.
    """
    interceptor = StatusInterceptor()
    server = grpc.aio.server(options=channel_options(transport), interceptors=[interceptor])
    health = Health(services)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    register(server)
    reflection.enable_server_reflection(
        (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), server
    )
    host = listen.rpartition(":")[0]
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {listen}: the address is in use or not ours") from error
    if port == 0:
        raise ConfigError(f"cannot listen on {listen}: the address is in use or not ours")
    handle = ServerHandle(f"{host}:{port}", health, tuple(services))
    await server.start()
    try:
        yield handle
    finally:
        health.leave()
        # grpc cancels a call that arrives in the moment of stopping; refused first, its caller knows to go elsewhere
        interceptor.leaving = True
        await asyncio.sleep(_SETTLE_S)
        await server.stop(transport.drain_s)
