"""Screening in this process, under a span: what the gateway runs by default, and the preprocess service too."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Tracer

from headrace.chassis import signals
from headrace.chassis.config import ScreenSettings
from headrace.core.screening import Verdict
from headrace.models.repository import Repository
from headrace.preprocess.screen.batcher import ScreenBatcher, open_batcher
from headrace.preprocess.screen.registry import load_screen
from headrace.preprocess.spans import stage


class InlineScreener:
    """Judges the texts of one request."""

    def __init__(self, batcher: ScreenBatcher, tracer: Tracer) -> None:
        self._batcher = batcher
        self._tracer = tracer

    async def screen(self, request_id: str, texts: Sequence[str], parent: Context) -> Verdict:
        """The verdict on the worst part of the texts. Raises QueueFull. Records span preprocess.screen."""
        attributes = {signals.REQUEST_ID: request_id}
        with stage(self._tracer, signals.PREPROCESS_SCREEN, parent, attributes) as span:
            verdict, num_windows = await self._batcher.screen(texts)
            span.set_attributes(
                {
                    signals.SCREEN_VERDICT: verdict.category or "pass",
                    signals.SCREEN_SCORE: verdict.score,
                    signals.SCREEN_MODEL: verdict.model,
                    signals.SCREEN_WINDOWS: num_windows,
                }
            )
            return verdict


@asynccontextmanager
async def open_screener(
    settings: ScreenSettings, repository: Repository, tracer: Tracer
) -> AsyncIterator[InlineScreener]:
    """The configured screen, loaded, with its threads. Raises ConfigError, ModelNotFound."""
    screen = await asyncio.to_thread(load_screen, settings.model, repository, settings.threads)
    async with open_batcher(screen, settings.threads, settings.max_batch, settings.max_waiting) as batcher:
        yield InlineScreener(batcher, tracer)
