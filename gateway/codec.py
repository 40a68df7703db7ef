"""The public contract's messages to and from the gateway's values. All that is wrong with a request is said here.

What depends on the prompt's length is checked by `fit`, once it is token ids; everything else before, by `decode`.
"""

import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.chassis.config import SlaDefault, SlaSettings
from headrace.chassis.constraint import CONSTRAINT_FIELDS, from_sampling
from headrace.core.errors import InvalidRequest, ModelNotFound
from headrace.core.model import ModelInfo
from headrace.core.request import DEFAULT_MAX_TOKENS, FinishReason, Precision, QosClass, Sampling
from headrace.core.result_state import ResultState
from headrace.gateway.generation import Piece, Prompt, Usage, Wish
from headrace.gateway.ports import Message, TextModels
from headrace.gateway.results.port import Summary
from headrace.gateway.sla import OnMiss, Sla, resolve

MAX_NAME_CHARS = 128
TENANT_KEY = "x-headrace-tenant"
DEFAULT_TENANT = "default"
ROLES = ("system", "user", "assistant")
SEED_BITS = 63

TENANT_NAME = r"[A-Za-z0-9._-]{1,64}"
_TENANT = re.compile(TENANT_NAME)

Wire = TypeVar("Wire", bound=IntEnum)


def request_id_of(request: pb.GenerateRequest | pb.EmbedRequest | pb.RerankRequest | pb.ClassifyRequest) -> str:
    """The request's id, drawn where it has none. Raises InvalidRequest."""
    request_id = request.request_id
    if len(request_id) > MAX_NAME_CHARS or not request_id.isprintable():
        raise InvalidRequest(
            f"request_id is over {MAX_NAME_CHARS} characters or not printable",
            field="request_id",
            limit=f"{MAX_NAME_CHARS} printable characters",
        )
    return request_id or secrets.token_hex(16)


def decode(request: pb.GenerateRequest, request_id: str, texts: TextModels) -> Wish:
    """Raises InvalidRequest, naming the field and its limit, or ModelNotFound."""
    model = model_of(request.model, texts, "decoder")
    return Wish(
        request_id=request_id,
        model=model,
        prompt=_prompt(request, model),
        sampling=_sampling(request.sampling, model),
        max_tokens_given=request.sampling.HasField("max_tokens"),
        qos=enum_of(QosClass, "qos_class", request.qos_class or QosClass.NORMAL),
        precision=enum_of(Precision, "precision", request.precision),
    )


def fit(wish: Wish, prompt_tokens: int) -> Sampling:
    """The sampling settings with max_tokens filled in. Raises InvalidRequest where prompt and answer do not fit."""
    context = wish.model.context_tokens
    if prompt_tokens == 0:
        raise InvalidRequest("the prompt has no tokens", field="prompt", limit="1 token at least")
    if prompt_tokens + 1 > context:
        raise InvalidRequest(
            f"the prompt has {prompt_tokens} tokens; the context of {context} leaves no room for an answer",
            field="prompt",
            limit=f"{context - 1} tokens",
        )
    room = context - prompt_tokens
    if not wish.max_tokens_given:
        sampling = replace(wish.sampling, max_tokens=min(DEFAULT_MAX_TOKENS, room))
        sampling.validate(wish.model.vocab_size)
        return sampling
    if wish.sampling.max_tokens > room:
        raise InvalidRequest(
            f"{prompt_tokens} prompt tokens and sampling.max_tokens {wish.sampling.max_tokens} exceed the context"
            f" of {context}",
            field="sampling.max_tokens",
            limit=str(room),
        )
    return wish.sampling


def tenant(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's tenant from the call's metadata. Raises InvalidRequest where it is no plain name."""
    name = next((value for key, value in metadata if key == TENANT_KEY), DEFAULT_TENANT)
    if not isinstance(name, str) or not _TENANT.fullmatch(name):
        raise InvalidRequest(f"{TENANT_KEY} is no plain name", field=TENANT_KEY, limit="1..64 of A-Z a-z 0-9 . _ -")
    return name


def accepted(request: pb.GenerateRequest, wish: Wish) -> bytes:
    """The request so that it gives the same answer again: with what was drawn for it, without what its call was
    promised."""
    kept = pb.GenerateRequest()
    kept.CopyFrom(request)
    kept.request_id, kept.sampling.seed = wish.request_id, wish.sampling.seed
    kept.ClearField("sla")
    return kept.SerializeToString()


def encode(request_id: str, piece: Piece) -> pb.GenerateResponse:
    response = pb.GenerateResponse(
        request_id=request_id,
        index=piece.index,
        text=piece.text,
        token_ids=piece.token_ids,
        logprobs=piece.logprobs,
        finish_reason=int(piece.finish),  # type: ignore[arg-type]
        precision=int(piece.precision),  # type: ignore[arg-type]
        from_cache=piece.from_cache,
    )
    if piece.usage is not None:
        response.usage.prompt_tokens = piece.usage.prompt_tokens
        response.usage.completion_tokens = piece.usage.completion_tokens
        response.usage.cached_prompt_tokens = piece.usage.cached_prompt_tokens
    if piece.screen is not None:
        response.screen.category = piece.screen.category
        response.screen.score = piece.screen.score
        response.screen.model = piece.screen.model
    return response


def encode_partial(request_id: str, index: int, result: tuple[Usage, str, int] | None) -> pb.GenerateResponse:
    """The end of an answer that goes on; the last of them brings usage so far, handle, and where to go on."""
    if result is None:
        return encode(request_id, Piece(index, "", b"", (), FinishReason.PARTIAL))
    usage, handle, offset = result
    response = encode(request_id, Piece(index, "", b"", (), FinishReason.PARTIAL, usage=usage))
    response.result.handle, response.result.offset = handle, offset
    return response


def encode_result(summary: Summary, now_s: float) -> pb.Result:
    running = summary.state is ResultState.RUNNING
    return pb.Result(
        handle=summary.handle,
        request_id=summary.request_id,
        model=summary.model,
        state=int(summary.state),  # type: ignore[arg-type]
        num_pieces=summary.num_pieces,
        num_tokens=summary.num_tokens,
        num_bytes=summary.num_bytes,
        age_ms=max(0, round((now_s - summary.created_s) * 1000)),
        expires_ms=0 if running else max(1, round((summary.expires_s - now_s) * 1000)),
    )


def sla_of(request: pb.GenerateRequest, qos: QosClass, defaults: SlaSettings) -> Sla | None:
    """What is promised to this call; None for nothing. Raises InvalidRequest."""
    given = {field.name: value for field, value in request.sla.ListFields()}
    names = {pb.ON_MISS_PARTIAL: OnMiss.PARTIAL, pb.ON_MISS_CANCEL: OnMiss.CANCEL, pb.ON_MISS_CONTINUE: OnMiss.CONTINUE}
    on_miss = names.get(request.sla.on_miss)
    if on_miss is None and request.sla.on_miss:
        known = ", ".join(f"{number} ({name.name})" for number, name in names.items())
        raise InvalidRequest(
            f"sla.on_miss is {request.sla.on_miss}, must be one of {known}", field="sla.on_miss", limit=known
        )
    default: SlaDefault = getattr(defaults, qos.name.lower())
    return resolve(given.get("first_token_ms"), given.get("total_ms"), on_miss, default)


def encode_model(info: ModelInfo, ready: bool) -> pb.Model:
    return pb.Model(
        name=info.name,
        kind=info.kind,
        context_tokens=info.context_tokens,
        vocab_size=info.vocab_size,
        digest=info.digest,
        ready=ready,
    )


def model_named(name: str, texts: TextModels) -> ModelInfo:
    """Raises ModelNotFound."""
    if len(name) > MAX_NAME_CHARS:  # never echoed: it would not fit into a status
        raise ModelNotFound(
            f"no model has a name of {len(name)} characters", field="model", limit=f"{MAX_NAME_CHARS} characters"
        )
    return texts.info(name)


def model_of(name: str, texts: TextModels, kind: str) -> ModelInfo:
    """The model of that name. Raises ModelNotFound, InvalidRequest where it is of another kind."""
    info = model_named(name, texts)
    if info.kind != kind:
        cannot = "generate" if kind == "decoder" else "encode"
        raise InvalidRequest(f"model {name!r} is of kind {info.kind} and does not {cannot}", field="model", limit=kind)
    return info


def _prompt(request: pb.GenerateRequest, model: ModelInfo) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            if not request.text:
                raise InvalidRequest("text is empty", field="text", limit="1 character at least")
            return request.text
        case "tokens":
            return token_ids_of(request.tokens.token_ids, "tokens.token_ids", model)
        case "chat":
            return _messages(request.chat)
        case _:
            raise InvalidRequest(
                "the prompt is missing: one of text, tokens, chat", field="prompt", limit="text, tokens or chat"
            )


def token_ids_of(data: bytes, field: str, model: ModelInfo) -> NDArray[np.uint32]:
    """Token ids [T], all in the model's vocabulary. Raises InvalidRequest that names `field`."""
    if not data or len(data) % 4:
        raise InvalidRequest(
            f"{field} has {len(data)} bytes, must be little-endian uint32, one at least",
            field=field,
            limit="multiple of 4 bytes, 4 at least",
        )
    token_ids = np.frombuffer(data, "<u4")
    if (highest := int(token_ids.max())) >= model.vocab_size:
        raise InvalidRequest(
            f"{field} has {highest}, outside the vocabulary of {model.vocab_size}",
            field=field,
            limit=f"0..{model.vocab_size - 1}",
        )
    return token_ids


def _messages(chat: pb.ChatPrompt) -> Prompt:
    for position, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise InvalidRequest(
                f"chat.messages[{position}].role is unknown, must be one of {', '.join(ROLES)}",
                field=f"chat.messages[{position}].role",
                limit=", ".join(ROLES),
            )
    if not any(message.content for message in chat.messages):
        raise InvalidRequest(
            "chat has no message with content", field="chat.messages", limit="1 message with content at least"
        )
    return tuple(Message(message.role, message.content) for message in chat.messages)


def _sampling(proto: types_pb2.Sampling, model: ModelInfo) -> Sampling:
    """Without a max_tokens of the caller's it is the whole context for now, so that nothing is refused too early."""
    defaults = {"max_tokens": model.context_tokens, "seed": secrets.randbits(SEED_BITS)}
    given = {field.name: value for field, value in proto.ListFields() if field.name not in CONSTRAINT_FIELDS}
    repeated = {name: tuple(given.get(name, ())) for name in ("stop", "stop_token_ids")}
    repeated["logit_bias"] = tuple(sorted(proto.logit_bias.items()))
    sampling = Sampling(**(defaults | given | repeated), constraint=from_sampling(proto))
    sampling.validate(model.vocab_size)
    return sampling


def enum_of(kind: type[Wire], field: str, value: int) -> Wire:
    """Raises InvalidRequest that names `field` where the value has no name."""
    try:
        return kind(value)
    except ValueError:
        known = [f"{member.value} ({member.name})" for member in kind]
        raise InvalidRequest(
            f"{field} is {value}, must be one of {', '.join(known)}", field=field, limit=", ".join(known)
        ) from None
