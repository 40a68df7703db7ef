"""Bodies of /v1/responses to the gateway's own request. Conversations, tools and reasoning are not done here."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest, Unsupported
from headrace.gateway.openai.body import Body, Neutral, UInt32
from headrace.gateway.openai.chat import ROLES
from headrace.gateway.openai.headers import Asked
from headrace.gateway.openai.sampling import DEFAULT_TEMPERATURE, StreamOptions


class InputPart(Body):
    """A part of an item's content: text that was asked, or answered."""

    neutral: ClassVar[Neutral] = {"type": ("input_text", "output_text"), "annotations": ([],), "logprobs": ([],)}
    text: str


def _parts(given: Any) -> Any:
    return [{"type": "input_text", "text": given}] if isinstance(given, str) else given


class InputItem(Body):
    """A message. What an answer's message has beside its text is taken, so that it can be sent back as it is."""

    neutral: ClassVar[Neutral] = {
        "type": ("message",),
        "status": ("completed", "incomplete", "in_progress"),
        "phase": ("final_answer", "commentary"),
    }
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[list[InputPart], BeforeValidator(_parts)]
    id: str | None = None


def _items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class TextOptions(Body):
    neutral: ClassVar[Neutral] = {"format": ({"type": "text"},), "verbosity": ()}


class ResponseBody(Body):
    """`user` and the two after it change nothing."""

    neutral: ClassVar[Neutral] = {
        "previous_response_id": (),
        "conversation": (),
        "context_management": ([],),
        "prompt": (),
        "include": ([],),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "max_tool_calls": (),
        "reasoning": ({},),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        "metadata": ({},),
        "service_tier": ("auto", "default"),
        "moderation": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
    }

    model: str
    input: Annotated[list[InputItem], BeforeValidator(_items), Field(min_length=1)]
    instructions: str | None = None
    background: bool = False
    store: bool | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_output_tokens: UInt32 | None = None
    temperature: float = DEFAULT_TEMPERATURE
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    text: TextOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


def decode_response(body: ResponseBody, asked: Asked) -> gateway_pb2.GenerateRequest:
    """Raises InvalidRequest, Unsupported."""
    if body.background and body.store is False:
        raise InvalidRequest("background goes with store: the answer must be kept", field="store", limit="true")
    if body.store and not body.background:
        raise Unsupported("answers are stored in the background only", field="store", limit="with background true")
    sampling = types_pb2.Sampling(temperature=body.temperature)
    if body.max_output_tokens is not None:
        sampling.max_tokens = body.max_output_tokens
    if body.top_p is not None and body.temperature:
        sampling.top_p = body.top_p
    request = gateway_pb2.GenerateRequest(model=body.model, sampling=sampling, **asked.generation_fields)
    if body.instructions:
        request.chat.messages.add(role="system", content=body.instructions)
    for item in body.input:
        text = "".join(part.text for part in item.content)
        request.chat.messages.add(role=ROLES.get(item.role, item.role), content=text)
    return request
