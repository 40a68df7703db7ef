"""Wires the preprocess service: models' text side, threads, Prepare streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from opentelemetry.trace import Tracer

from headrace.api.preprocess.v1 import preprocess_pb2_grpc
from headrace.chassis.config import Settings
from headrace.chassis.metrics import Metrics
from headrace.chassis.server import ServerHandle, serve
from headrace.models.repository import Repository
from headrace.preprocess.inline import InlinePreparer
from headrace.preprocess.pipeline import open_pipeline
from headrace.preprocess.screen.inline import open_screener
from headrace.preprocess.servicer import SERVICE, PreprocessServicer
from headrace.preprocess.text_models import TextModels


@asynccontextmanager
async def start(settings: Settings, tracer: Tracer, metrics: Metrics | None = None) -> AsyncIterator[ServerHandle]:
    """Serves Prepare streams; ready when the installed models are loaded. Raises ConfigError."""
    own, repository = settings.preprocess, Repository(settings.models.home)
    texts = TextModels(repository)
    async with AsyncExitStack() as stack:
        pipeline = await stack.enter_async_context(open_pipeline(texts, own.threads))
        screener = None
        if settings.screen.used:
            screener = await stack.enter_async_context(open_screener(settings.screen, repository, tracer))
        preparer = InlinePreparer(pipeline, tracer, metrics)
        servicer = PreprocessServicer(preparer, settings.transport.max_message_bytes, screener)
        async with serve(
            own.listen,
            settings.transport,
            lambda server: preprocess_pb2_grpc.add_PreprocessServiceServicer_to_server(servicer, server),
            [SERVICE],
        ) as handle:
            await asyncio.to_thread(texts.warm_up)
            await handle.set_ready(True)
            try:
                yield handle
            finally:
                await handle.set_ready(False)
                servicer.drain()
