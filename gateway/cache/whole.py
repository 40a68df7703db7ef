"""An answer's pieces put together: one piece for each of its n."""

from collections.abc import Sequence

from headrace.core.request import FinishReason, Precision
from headrace.gateway.generation import Piece


class Whole:
    """What is longer than `max_bytes` of text, tokens and log probabilities is let go, and what a screen marked."""

    def __init__(self, n: int, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._parts: list[list[Piece]] = [[] for _ in range(n)]
        self._kept = True

    def add(self, piece: Piece) -> None:
        if not self._kept:
            return
        logprobs_bytes = sum(each.ByteSize() for each in piece.logprobs)
        self._left_bytes -= len(piece.text.encode()) + len(piece.token_ids) + logprobs_bytes
        self._parts[piece.index].append(piece)
        if self._left_bytes < 0 or piece.screen is not None:
            self._kept, self._parts = False, []

    def pieces(self) -> Sequence[Piece] | None:
        """That with usage comes last. None where an answer has not ended, or was let go."""
        if not self._kept or not all(parts and parts[-1].finish is not FinishReason.NONE for parts in self._parts):
            return None
        served = (piece.precision for parts in self._parts for piece in parts)
        precision = next((each for each in served if each), Precision.ANY)
        whole = sorted((_joined(parts, precision) for parts in self._parts), key=lambda piece: piece.usage is not None)
        return whole if whole[-1].usage is not None else None


def _joined(parts: Sequence[Piece], precision: Precision) -> Piece:
    return Piece(
        parts[0].index,
        "".join(piece.text for piece in parts),
        b"".join(piece.token_ids for piece in parts),
        [each for piece in parts for each in piece.logprobs],
        parts[-1].finish,
        precision,
        parts[-1].usage,
    )
