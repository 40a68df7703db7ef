"""What the gateway needs of text processing; preprocess provides it, standalone wires it in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context

from headrace.core.model import ModelInfo


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class EncoderText:
    """A text for an encoder, or with `pair` two of them that belong together."""

    text: str
    pair: str | None = None


EncoderTokens = tuple[NDArray[np.uint32], int]
"""Token ids [T], special ones among them, and how many of them are of the first of two texts."""


class CallContext(Protocol):
    """What the gateway asks of a call, whichever door it came by; gRPC's own contexts are such."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...

    def time_remaining(self) -> float | None:
        """Seconds; None for no deadline."""

    def add_done_callback(self, callback: Any) -> None:
        """Calls it once the call is over, also where its handler hangs in a send."""


class Preparer(Protocol):
    """Turns prompts and texts into token ids; inline or over the preprocess service."""

    async def prepare(
        self, request_id: str, model: str, prompt: str | Sequence[Message], parent: Context
    ) -> NDArray[np.uint32]:
        """Token ids [T]. Raises InvalidRequest or ModelNotFound. Records span preprocess.prepare under `parent`."""

    async def prepare_texts(
        self, request_id: str, model: str, texts: Sequence[EncoderText], truncate: bool, parent: Context
    ) -> Sequence[EncoderTokens]:
        """An encoder's texts, in order; with `truncate` cut to the model's context. Raises and records as `prepare`."""


class TextStream(Protocol):
    """Incremental detokenising of one answer: whole characters only."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; '' while a character is unfinished."""

    def flush(self) -> str:
        """What is left when the answer has ended, broken characters replaced."""


class TextModels(Protocol):
    """The models whose text the gateway can read and write."""

    def names(self) -> Sequence[str]: ...

    def info(self, name: str) -> ModelInfo:
        """Raises ModelNotFound."""

    def text_stream(self, name: str) -> TextStream:
        """Raises ModelNotFound."""

    def token_bytes(self, name: str, token_id: int) -> bytes:
        """What one token stands for, which need be no whole character. Raises ModelNotFound."""
