"""Preparing in this process: the pipeline under a span. What the gateway runs by default, and the service too."""

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context
from opentelemetry.trace import Tracer

from headrace.chassis import signals
from headrace.core.errors import HeadraceError
from headrace.preprocess.pipeline import Pipeline, Prompt


class InlinePreparer:
    """Turns a prompt into token ids and records span preprocess.prepare."""

    def __init__(self, pipeline: Pipeline, tracer: Tracer) -> None:
        self._pipeline = pipeline
        self._tracer = tracer

    async def prepare(self, request_id: str, model: str, prompt: Prompt, parent: Context) -> NDArray[np.uint32]:
        """Token ids [T]. Raises InvalidRequest or ModelNotFound. Records span preprocess.prepare under `parent`."""
        attributes = {signals.REQUEST_ID: request_id, signals.GENAI_MODEL: model}
        with self._tracer.start_as_current_span(signals.PREPROCESS_PREPARE, parent, attributes=attributes) as span:
            try:
                token_ids = await self._pipeline.prepare(model, prompt)
            except HeadraceError as error:
                span.set_attribute(signals.ERROR_TYPE, error.reason)
                raise
            span.set_attribute(signals.PROMPT_TOKENS, len(token_ids))
            return token_ids
