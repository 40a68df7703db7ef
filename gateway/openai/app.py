"""The door's life: from the gateway's start to its end."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.chassis.config import Settings
from headrace.gateway.background import Background
from headrace.gateway.openai.leaving import Leaving
from headrace.gateway.openai.routes import Routes
from headrace.gateway.openai.server import HttpHandle, serving
from headrace.gateway.ports import TextModels
from headrace.gateway.servicer import GatewayService
from headrace.gateway.tenants.callers import Callers


@asynccontextmanager
async def open_door(
    settings: Settings,
    core: GatewayService,
    background: Background,
    texts: TextModels,
    callers: Callers,
    ready: Callable[[], bool],
) -> AsyncIterator[HttpHandle]:
    """Serves `gateway.http_listen` until the block ends. Raises ConfigError where it cannot be bound."""
    leaving = Leaving()
    application = Routes(settings, core, background, texts, callers, ready, leaving).application()
    async with serving(
        application,
        settings.gateway.http_listen,
        leaving,
        settings.gateway.longest_unread_s,
        settings.transport.drain_s,
        settings.transport.max_metadata_bytes,
        settings.transport.tls,
        settings.gateway.client_certificates,
    ) as handle:
        yield handle
