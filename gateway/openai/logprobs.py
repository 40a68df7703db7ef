"""Log probabilities of tokens in OpenAI's two forms: that of chats, and the older one of completions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.types.v1.types_pb2 import Logprobs, TokenLogprob

LOWEST = -9999.0
"""What OpenAI's API says for less, since JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """`bytes_of` is the model's: what a token stands for, which need be no whole character."""

    bytes_of: Callable[[int], bytes]

    def text(self, token_id: int) -> str:
        return self.bytes_of(token_id).decode(errors="replace")

    def chat(self, logprobs: Sequence[Logprobs]) -> dict[str, Any] | None:
        """None where there are none."""
        if not logprobs:
            return None
        content = [
            self._chat_token(each.chosen) | {"top_logprobs": [self._chat_token(other) for other in each.top]}
            for each in logprobs
        ]
        return {"content": content, "refusal": None}

    def completion(self, logprobs: Sequence[Logprobs], offset: int) -> dict[str, Any] | None:
        """`offset`: characters of the answer before these tokens."""
        if not logprobs:
            return None
        tokens = [self.text(each.chosen.token_id) for each in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(each.chosen.logprob) for each in logprobs],
            "top_logprobs": [
                {self.text(other.token_id): _finite(other.logprob) for other in (each.chosen, *each.top)}
                for each in logprobs
            ]
            if any(each.top for each in logprobs)
            else None,
            "text_offset": offsets,
        }

    def _chat_token(self, token: TokenLogprob) -> dict[str, Any]:
        spelled = self.bytes_of(token.token_id)
        return {
            "token": spelled.decode(errors="replace"),
            "logprob": _finite(token.logprob),
            "bytes": list(spelled),
        }


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
