"""Texts for an encoder to token ids: single texts and pairs, cut to the model's context where that is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import InvalidRequest
from headrace.preprocess.text_models import TextModel

EncoderTokens = tuple[NDArray[np.uint32], int]
"""Token ids [T] with special tokens, and how many of them are of the first of two texts."""


class Text(Protocol):
    """A text, or with `pair` two of them that belong together."""

    @property
    def text(self) -> str: ...

    @property
    def pair(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """A plain `Text`."""

    text: str
    pair: str | None = None


def tokenise_texts(model: TextModel, texts: Sequence[Text], *, truncate: bool) -> list[EncoderTokens]:
    """Each text's tokens, in order.

    Cutting takes from the end of a text, of a pair's second. Raises InvalidRequest, naming the text by its place.
    """
    limit = model.info.context_tokens
    firsts = model.tokenizer.encode_pieces([each.text for each in texts])
    seconds = model.tokenizer.encode_pieces([each.pair for each in texts if each.pair is not None])
    following = iter(seconds)
    tokenised = []
    for place, (each, first) in enumerate(zip(texts, firsts, strict=True)):
        second = next(following) if each.pair is not None else None
        room = limit - model.tokenizer.num_special_tokens(pair=second is not None)
        num_tokens = len(first) + (len(second) if second is not None else 0)
        if num_tokens > room:
            kept = len(first) if second is not None else 0
            if not truncate or kept >= room:
                what = "query and document" if second is not None else "text"
                raise InvalidRequest(
                    f"texts[{place}]: {what} of {num_tokens} tokens exceed the {room} of the model's context",
                    field=f"texts[{place}]",
                    limit=f"{room} tokens",
                )
            (first if second is None else second).truncate(room - kept)
        tokenised.append(model.tokenizer.with_special_tokens(first, second))
    return tokenised
