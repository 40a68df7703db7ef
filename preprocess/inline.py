"""Preparing in this process: the pipeline under a span. What the gateway runs by default, and the service too."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context
from opentelemetry.trace import Tracer

from headrace.chassis import signals
from headrace.chassis.metrics import Metrics
from headrace.preprocess.encoder_texts import EncoderTokens, Text
from headrace.preprocess.meters import PrepareMeters
from headrace.preprocess.pipeline import Pipeline, Prompt
from headrace.preprocess.spans import stage


class InlinePreparer:
    """Turns a prompt into token ids and records span preprocess.prepare."""

    def __init__(self, pipeline: Pipeline, tracer: Tracer, metrics: Metrics | None = None) -> None:
        self._pipeline = pipeline
        self._tracer = tracer
        self._meters = PrepareMeters(metrics or Metrics("preprocess"), pipeline.threads)

    async def prepare(self, request_id: str, model: str, prompt: Prompt, parent: Context) -> NDArray[np.uint32]:
        """Token ids [T]. Raises InvalidRequest or ModelNotFound. Records span preprocess.prepare under `parent`."""
        attributes = {signals.REQUEST_ID: request_id, signals.GENAI_MODEL: model}
        with self._meters.preparing(), stage(self._tracer, signals.PREPROCESS_PREPARE, parent, attributes) as span:
            token_ids = await self._pipeline.prepare(model, prompt)
            span.set_attribute(signals.PROMPT_TOKENS, len(token_ids))
            return token_ids

    async def prepare_texts(
        self, request_id: str, model: str, texts: Sequence[Text], truncate: bool, parent: Context
    ) -> list[EncoderTokens]:
        """An encoder's texts, in order: see `tokenise_texts`. Records span preprocess.prepare under `parent`."""
        attributes: dict[str, str | int] = {
            signals.REQUEST_ID: request_id,
            signals.GENAI_MODEL: model,
            signals.NUM_TEXTS: len(texts),
        }
        with self._meters.preparing(), stage(self._tracer, signals.PREPROCESS_PREPARE, parent, attributes) as span:
            tokens = await self._pipeline.prepare_texts(model, texts, truncate=truncate)
            span.set_attribute(signals.PROMPT_TOKENS, sum(len(token_ids) for token_ids, _ in tokens))
            return tokens
