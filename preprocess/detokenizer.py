"""Incremental detokenising: the text of one answer, piece by piece, whole characters only.

The method of text-generation-inference and vLLM: decode a short window from `prefix` on, once with and once without
the new tokens; what the new tokens add is the piece. The window starts where earlier text ended cleanly, so its cost
does not grow with the answer, and the prefix keeps decoders right that treat the first token differently.
"""

from collections.abc import Sequence

from headrace.preprocess.tokenizer import Tokenizer

UNFINISHED = "\ufffd"
MAX_HELD_TOKENS = 16
"""Tokens held back for an unfinished character before a safe cut is searched; a character has four bytes at most."""


class Detokenizer:
    """Text of one answer. Special, end-of-sequence and unknown tokens stand for no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # tokens from the prefix offset on
        self._read = 0  # tokens of the window whose text has gone out
        self._prefix = ""  # the text of those

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; '' while a character is unfinished."""
        new = self._tokenizer.visible(token_ids)
        if not new:
            return ""
        self._window += new
        text = self._tokenizer.decode(self._window)
        if not text.endswith(UNFINISHED) and len(text) > len(self._prefix):
            return self._advance(len(self._window), text)
        if len(self._window) - self._read >= MAX_HELD_TOKENS:
            return self._advance_to_safe_cut(text)
        return ""

    def flush(self) -> str:
        """What is left when the answer has ended, broken characters replaced."""
        return self._advance(len(self._window), self._tokenizer.decode(self._window))

    def _advance(self, end: int, text: str) -> str:
        """Takes `text`, that of the window up to `end`, as gone out, and returns its new part."""
        piece = text[len(self._prefix) :]
        self._window = self._window[self._read :]
        self._read = end - self._read
        self._prefix = self._tokenizer.decode(self._window[: self._read])
        return piece

    def _advance_to_safe_cut(self, text: str) -> str:
        """Broken bytes can go on without end. Cut them where no character spans the cut: both sides say as much alone
        as together. Of four neighbouring places one is such, as a character has four bytes at most."""
        for end in range(len(self._window) - 1, max(len(self._window) - 5, self._read), -1):
            head = self._tokenizer.decode(self._window[:end])
            if len(head) > len(self._prefix) and head + self._tokenizer.decode(self._window[end:]) == text:
                return self._advance(end, head)
        return ""
