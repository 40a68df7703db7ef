"""One service, wired: its app with the tracer and the ports it needs.

Imports stand in the functions: a scheduler's process must not pull in an engine, nor a gateway's a scheduler.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from opentelemetry.trace import Tracer

from headrace.chassis.config import Settings
from headrace.chassis.metric_export import exporting
from headrace.chassis.metrics import Metrics
from headrace.chassis.server import ServerHandle
from headrace.chassis.telemetry import telemetry
from headrace.models.repository import Repository
from headrace.standalone.services import ROLES, Service

if TYPE_CHECKING:
    from headrace.gateway.ports import Preparer
    from headrace.gateway.screen_gate import Screener
    from headrace.preprocess.text_models import TextModels


@asynccontextmanager
async def start(service: Service, settings: Settings) -> AsyncIterator[ServerHandle]:
    """Starts one service with its own telemetry and its role's certificate; drains it when the block ends.

    Raises ConfigError (address in use), ModelNotFound and what the service's own start raises.
    """
    metrics = Metrics(service)
    settings = settings.model_copy(update={"transport": settings.transport.of(ROLES[service])})
    async with (
        metrics.serving(settings.telemetry.metrics_listen, settings.transport.tls),
        _tracer(service, settings) as tracer,
        _app(service, settings, tracer, metrics) as handle,
        exporting(metrics, service, _instance(), settings.telemetry),
    ):
        yield handle


def _app(
    service: Service, settings: Settings, tracer: Tracer, metrics: Metrics
) -> AbstractAsyncContextManager[ServerHandle]:
    match service:
        case Service.SCHEDULER:
            from headrace.scheduler import app as scheduler

            return scheduler.start(settings, tracer, metrics)
        case Service.EXECUTOR:
            from headrace.executor import app as executor

            return executor.start(settings, tracer, metrics)
        case Service.ENCODER:
            from headrace.executor.encoding import app as encoder

            return encoder.start(settings, tracer, metrics)
        case Service.PREPROCESS:
            from headrace.preprocess import app as preprocess

            return preprocess.start(settings, tracer, metrics)
        case Service.GATEWAY:
            return _gateway(settings, tracer, metrics)


@asynccontextmanager
async def _gateway(settings: Settings, tracer: Tracer, metrics: Metrics) -> AsyncIterator[ServerHandle]:
    from headrace.gateway import app as gateway
    from headrace.preprocess.text_models import TextModels

    texts = TextModels(Repository(settings.models.home))
    await asyncio.to_thread(texts.warm_up)
    async with (
        _preparer(settings, tracer, metrics, texts) as preparer,
        _screener(settings, tracer) as screener,
        gateway.start(settings, tracer, preparer, texts, screener, metrics) as handle,
    ):
        yield handle


@asynccontextmanager
async def _preparer(
    settings: Settings, tracer: Tracer, metrics: Metrics, texts: "TextModels"
) -> AsyncIterator["Preparer"]:
    if settings.gateway.preprocess == "inline":
        from headrace.preprocess.inline import InlinePreparer
        from headrace.preprocess.pipeline import open_pipeline

        async with open_pipeline(texts, settings.gateway.tokenizer_threads) as pipeline:
            yield InlinePreparer(pipeline, tracer, metrics)
    else:
        from headrace.preprocess.remote import open_preparer

        async with open_preparer(settings.gateway.preprocess, settings.transport) as preparer:
            yield preparer


@asynccontextmanager
async def _screener(settings: Settings, tracer: Tracer) -> AsyncIterator["Screener | None"]:
    """Where prompts are prepared, there they are screened; None where no policy asks for it."""
    if not settings.screen.used:
        yield None
    elif settings.gateway.preprocess == "inline":
        from headrace.preprocess.screen.inline import open_screener

        async with open_screener(settings.screen, Repository(settings.models.home), tracer) as inline:
            yield inline
    else:
        from headrace.preprocess.screen.remote import open_remote_screener

        address, budget_s = settings.gateway.preprocess, settings.screen.budget_ms / 1000
        async with open_remote_screener(address, settings.transport, budget_s) as remote:
            yield remote


@asynccontextmanager
async def _tracer(service: Service, settings: Settings) -> AsyncIterator[Tracer]:
    """The service's tracer; flushed off the event loop, where a collector of this same process may be answering."""
    with ExitStack() as stack:
        tracer = stack.enter_context(telemetry(service, _instance(), settings.telemetry, settings.transport.tls))
        try:
            yield tracer
        finally:
            await asyncio.to_thread(stack.close)


def _instance() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
