"""The CPU stages of one prompt: chat template, then tokenise; in a bounded pool of threads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import InvalidRequest
from headrace.preprocess.encoder_texts import EncoderTokens, Text, tokenise_texts
from headrace.preprocess.template import ChatMessage
from headrace.preprocess.text_models import TextModel, TextModels

Prompt = str | Sequence[ChatMessage]
Done = TypeVar("Done")

INLINE_CHARACTERS = 512
"""A prompt up to this long is prepared on the event loop: SmolLM2's tokenizer takes a few hundred microseconds
at most, about what a hop to a thread and back costs on a busy machine."""


class Pipeline:
    """Prepares prompts; at most `threads` long ones at a time, the others wait."""

    def __init__(self, texts: TextModels, pool: ThreadPoolExecutor, threads: int) -> None:
        self._texts = texts
        self._pool = pool
        self.threads = threads
        self._slots = asyncio.Semaphore(threads)

    async def prepare(self, model: str, prompt: Prompt) -> NDArray[np.uint32]:
        """Token ids [T], 1 <= T <= the model's context. Raises InvalidRequest (prompt.text or chat), ModelNotFound."""
        loaded = self._texts.loaded(model)
        if loaded and _num_characters(prompt) <= INLINE_CHARACTERS:
            return tokenise(loaded, prompt)
        return await self._in_thread(lambda: tokenise(self._texts.load(model), prompt))

    async def prepare_texts(self, model: str, texts: Sequence[Text], *, truncate: bool) -> list[EncoderTokens]:
        """An encoder's texts: see `tokenise_texts`. Raises InvalidRequest, ModelNotFound."""
        loaded = self._texts.loaded(model)
        if loaded and sum(len(each.text) + len(each.pair or "") for each in texts) <= INLINE_CHARACTERS:
            return tokenise_texts(loaded, texts, truncate=truncate)
        return await self._in_thread(lambda: tokenise_texts(self._texts.load(model), texts, truncate=truncate))

    async def _in_thread(self, work: Callable[[], Done]) -> Done:
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        job = self._pool.submit(work)
        # The slot comes back with the thread, not with a caller that gave up: the pool never has a queue.
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(self._slots.release))
        return await asyncio.wrap_future(job)


@asynccontextmanager
async def open_pipeline(texts: TextModels, threads: int) -> AsyncIterator[Pipeline]:
    """A pipeline with its threads, which end with the block."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="preprocess")
    try:
        yield Pipeline(texts, pool, threads)
    finally:
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)


def tokenise(model: TextModel, prompt: Prompt) -> NDArray[np.uint32]:
    """Token ids [T] of a text or a chat, on the calling thread. Raises InvalidRequest."""
    if isinstance(prompt, str):
        field, token_ids = "prompt.text", model.tokenizer.encode(prompt, add_special_tokens=True)
    else:  # a template writes its special tokens itself
        text = model.template.render(prompt)
        field, token_ids = "chat", model.tokenizer.encode(text, add_special_tokens=False)
    if not 1 <= len(token_ids) <= model.info.context_tokens:
        raise InvalidRequest(
            f"the prompt has {len(token_ids)} tokens, must have 1 to {model.info.context_tokens}",
            field=field,
            limit=f"1..{model.info.context_tokens} tokens",
        )
    return token_ids


def _num_characters(prompt: Prompt) -> int:
    return len(prompt) if isinstance(prompt, str) else sum(len(message.content) for message in prompt)
