"""The server of a service: standard health and reflection, our interceptors, bounded drain."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.chassis.access import Access
from headrace.chassis.certificates import Certificates
from headrace.chassis.channel import channel_options
from headrace.chassis.config import TransportSettings
from headrace.chassis.credentials import server_credentials
from headrace.chassis.health import Health
from headrace.chassis.interceptors import StatusInterceptor
from headrace.core.errors import ConfigError

log = logging.getLogger(__name__)

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


def is_loopback(listen: str) -> bool:
    """Whether only this machine reaches HOST:PORT."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warn_if_open(listen: str) -> None:
    """For a port without TLS."""
    if not is_loopback(listen):
        log.warning("%s is open to other machines without TLS: set transport.tls", listen)


@asynccontextmanager
async def serve(
    listen: str,
    transport: TransportSettings,
    register: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    *,
    ask_callers: bool = True,
) -> AsyncIterator[ServerHandle]:
    """Serves until the block ends, then takes no new call and waits up to `transport.drain_s` for running ones.

    `register` adds the servicers, `services` are their full names. Not ready until `set_ready(True)`. With TLS callers
    need a certificate unless `ask_callers` is False, and one of the right role for each method. Raises ConfigError
    where the address cannot be bound, or the certificates are not to be had.
    """
    certificates = Certificates(transport.tls, server=True) if transport.tls else None
    if certificates is None:
        warn_if_open(listen)
    interceptor = StatusInterceptor(Access(certificates.domain, ask_callers) if certificates else None)
    server = grpc.aio.server(options=channel_options(transport), interceptors=[interceptor])
    health = Health(services)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    register(server)
    reflection.enable_server_reflection(
        (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), server
    )
    host = listen.rpartition(":")[0]
    try:
        if certificates:
            port = server.add_secure_port(listen, server_credentials(certificates, ask_callers))
        else:
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
