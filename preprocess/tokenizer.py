"""A model's tokenizer: text to token ids and back, by the `tokenizers` library."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from headrace.models.reference import byte_letters

_BYTE_OF = {letter: byte for byte, letter in byte_letters().items()}
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""As SentencePiece writes it."""


class Tokenizer:
    """Reads tokenizer.json. Safe to share between threads.

    `hidden_token_ids` are kept out of decoded text beside those that the file itself marks as special.
    """

    def __init__(self, path: Path, hidden_token_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()  # some files bring the settings of their training
        self._tokenizer.no_padding()
        special = (token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special)
        self._hidden = frozenset((*special, *hidden_token_ids))
        decoder = self._tokenizer.decoder
        self._byte_level = decoder is not None and b"ByteLevel" in decoder.__getstate__()

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """Token ids [T]; releases the GIL. `add_special_tokens` adds those that the file puts around a text."""
        # A batch of one, because `encode` itself keeps the GIL; the fast variant leaves out character offsets.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return np.array(encoding.ids, dtype=np.uint32)

    def encode_pieces(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Each text's tokens, nothing around them yet; releases the GIL."""
        return self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)

    def num_special_tokens(self, *, pair: bool) -> int:
        """How many the file puts around a text, or around and between two."""
        return self._tokenizer.num_special_tokens_to_add(pair)

    def with_special_tokens(
        self, first: tokenizers.Encoding, second: tokenizers.Encoding | None
    ) -> tuple[NDArray[np.uint32], int]:
        """Token ids [T] of a text or of two, and how many of them are of type 0: those of the first."""
        whole = self._tokenizer.post_process(first, second, True)
        return np.array(whole.ids, dtype=np.uint32), whole.type_ids.count(0)

    def visible(self, token_ids: Sequence[int]) -> list[int]:
        """Those tokens that stand for text: not special, not hidden, not beyond the vocabulary."""
        named = self._tokenizer.id_to_token
        return [token for token in token_ids if token not in self._hidden and named(token) is not None]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of visible tokens; bytes that make no character become U+FFFD."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """The token's written form; '' where there is none."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for within a text, which need be no whole character; of a hidden one its written form,
        b'' for none."""
        written = self.token(token_id)
        if token_id in self._hidden:
            return written.encode()
        if self._byte_level and all(letter in _BYTE_OF for letter in written):
            return bytes(_BYTE_OF[letter] for letter in written)
        if single := _BYTE_TOKEN.fullmatch(written):
            return bytes.fromhex(single[1])
        return written.replace(_SPACE, " ").encode()
