"""One of a request's answers: token ids in, text and finish reason out. Owns detokenising and stop strings."""

import struct
from collections.abc import Collection, Sequence

from headrace.core.request import FinishReason, Sampling
from headrace.gateway.generation import TOKEN_BYTES, Output, Piece
from headrace.gateway.ports import TextStream
from headrace.gateway.stops import StopStrings


class Answer:
    """Tokens come in any grouping; the text, the cut and the token count do not depend on it.

    The token that ended the answer (`end_token_ids`: end of sequence and stop tokens) counts and is reported, but is
    no text. Stop strings are not looked for in the text of the first `sampling.min_tokens` tokens.
    """

    def __init__(self, stream: TextStream, sampling: Sampling, end_token_ids: Collection[int]) -> None:
        self._stream = stream
        self._stops = StopStrings(sampling.stop) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self._end_token_ids = end_token_ids
        self.num_tokens = 0
        self.finish = FinishReason.NONE

    def push(self, output: Output) -> Piece:
        """The piece that these tokens make; tokens past a stop string are dropped."""
        data = output.token_ids
        token_ids = struct.unpack(f"<{len(data) // TOKEN_BYTES}I", data)
        ended = output.finish is not FinishReason.NONE
        silent = output.finish is FinishReason.STOP and bool(token_ids) and token_ids[-1] in self._end_token_ids
        spoken = token_ids[:-1] if silent else token_ids
        if self._stops is None:
            self.num_tokens += len(token_ids)
            text = self._stream.push(spoken) if spoken else ""
            if ended:
                text += self._stream.flush()
                self.finish = output.finish
            return Piece(output.index, text, data, output.logprobs, self.finish)
        text, taken = self._until_stop(self._stops, spoken)
        if not self._stops.hit:
            taken = len(token_ids)
            if ended:
                text += self._stops.push(self._stream.flush())
                text += self._stops.flush()
        self.num_tokens += taken
        self.finish = FinishReason.STOP if self._stops.hit else output.finish
        return Piece(output.index, text, data[: taken * TOKEN_BYTES], output.logprobs[:taken], self.finish)

    def _until_stop(self, stops: StopStrings, token_ids: Sequence[int]) -> tuple[str, int]:
        """Text to emit and number of tokens used, one token at a time up to the one that completes a stop string."""
        text = ""
        for position, token_id in enumerate(token_ids, start=1):
            grown = self._stream.push((token_id,))
            text += stops.push(grown) if self.num_tokens + position > self._min_tokens else grown
            if stops.hit:
                return text, position
        return text, len(token_ids)
