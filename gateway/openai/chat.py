"""Chats: a body of /v1/chat/completions to the gateway's own request, and answers to messages."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from headrace.api.gateway.v1 import gateway_pb2
from headrace.core.errors import InvalidRequest, Unsupported
from headrace.gateway.openai.body import Body, Neutral, UInt32
from headrace.gateway.openai.form import FINISH_REASONS, Answer
from headrace.gateway.openai.headers import Asked
from headrace.gateway.openai.logprobs import TokenTexts
from headrace.gateway.openai.sampling import GenerationBody

ROLES = {"developer": "system"}
"""As OpenAI's newer models call it."""
_TOOL_ROLES = ("tool", "function")


class Part(Body):
    """A part of a message's content."""

    neutral: ClassVar[Neutral] = {"type": ("text",)}
    text: str


def _parts(given: Any) -> Any:
    return [{"type": "text", "text": given}] if isinstance(given, str) else given


class Turn(Body):
    """A message. What an answer's message has beside its text may be null, so that it can be sent back as it is."""

    neutral: ClassVar[Neutral] = {
        "name": (),
        "tool_calls": ([],),
        "tool_call_id": (),
        "function_call": (),
        "refusal": (),
        "audio": (),
        "annotations": ([],),
    }
    role: str
    content: Annotated[list[Part], BeforeValidator(_parts)]


class ChatBody(GenerationBody):
    neutral: ClassVar[Neutral] = GenerationBody.neutral | {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
    }
    messages: Annotated[list[Turn], Field(min_length=1)]
    max_completion_tokens: UInt32 | None = None
    logprobs: bool = False
    top_logprobs: UInt32 | None = None


def decode_chat(body: ChatBody, asked: Asked) -> gateway_pb2.GenerateRequest:
    """Raises InvalidRequest, Unsupported."""
    body.check_stream()
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs go with logprobs", field="top_logprobs", limit="with logprobs true")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.max_tokens not in (None, max_tokens):
        raise InvalidRequest(
            "max_tokens and max_completion_tokens differ, and mean the same", field="max_tokens", limit="one of them"
        )
    request = gateway_pb2.GenerateRequest(
        model=body.model,
        sampling=body.sampling(max_tokens, (body.top_logprobs or 0) if body.logprobs else None),
        **asked.generation_fields,
    )
    for place, turn in enumerate(body.messages):
        if turn.role in _TOOL_ROLES:
            field = f"messages[{place}].role"
            raise Unsupported(f"{field} is {turn.role}, and tools are not supported here", field=field)
        request.chat.messages.add(
            role=ROLES.get(turn.role, turn.role), content="".join(part.text for part in turn.content)
        )
    return request


@dataclass(frozen=True, slots=True)
class ChatForm:
    id_prefix: ClassVar[str] = "chatcmpl-"
    whole: ClassVar[str] = "chat.completion"
    part: ClassVar[str] = "chat.completion.chunk"
    tokens: TokenTexts

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(answer.text), "refusal": None},
            "logprobs": self.tokens.chat(answer.logprobs),
            "finish_reason": FINISH_REASONS.get(answer.finish),
        }

    def delta(self, index: int, piece: gateway_pb2.GenerateResponse, begun: bool, offset: int) -> dict[str, Any]:
        said = {} if begun else {"role": "assistant"}
        return {
            "index": index,
            "delta": said | {"content": piece.text},
            "logprobs": self.tokens.chat(piece.logprobs),
            "finish_reason": FINISH_REASONS.get(piece.finish_reason),
        }
