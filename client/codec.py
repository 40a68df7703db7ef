"""Between the client's values and the wire. Proto types end here. Values the wire cannot hold are InvalidRequest."""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.chassis.constraint import CONSTRAINT_FIELDS
from headrace.client.values import (
    Answer,
    CallOptions,
    Message,
    Model,
    Piece,
    Prompt,
    Result,
    ResultHandle,
    SamplingOptions,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from headrace.core.errors import EngineFault, InvalidRequest
from headrace.core.request import FinishReason, Precision, QosClass
from headrace.core.result_state import ResultState
from headrace.core.screening import Verdict

Names = TypeVar("Names", QosClass, Precision)

_propagator = TraceContextTextMapPropagator()


_OF_THE_CALL = CallOptions.__annotations__.keys() - SamplingOptions.__annotations__.keys()


def encode(model: str, prompt: Prompt, n: int | None, options: CallOptions) -> pb.GenerateRequest:
    """Raises InvalidRequest for values that the wire cannot hold; the gateway checks the rest."""
    request = pb.GenerateRequest(model=model, request_id=options.get("request_id") or "")
    request.qos_class = named(QosClass, "qos", options.get("qos", "normal")).value  # type: ignore[assignment]
    precision = options.get("precision") or Precision.ANY.name
    request.precision = named(Precision, "precision", precision).value  # type: ignore[assignment]
    request.cacheable = options.get("cacheable", False)
    _put_prompt(request, prompt)
    _put_sla(request, options)
    for name, value in {**options, "n": n}.items():
        if name in CONSTRAINT_FIELDS and value is not None:
            _put_constraint(request.sampling, name, value)
        elif value is not None and name not in _OF_THE_CALL:
            _put_option(request.sampling, name, value)
    return request


def metadata(tenant: str | None, api_key: str | None = None) -> tuple[tuple[str, str | bytes], ...]:
    """The call's metadata: tenant, key and the current trace context."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    if tenant is not None:
        carrier["x-headrace-tenant"] = tenant
    if api_key is not None:
        carrier["authorization"] = f"Bearer {api_key}"
    return tuple(carrier.items())


def decode(response: pb.GenerateResponse) -> Piece:
    data = response.token_ids
    return Piece(
        request_id=response.request_id,
        index=response.index,
        text=response.text,
        token_ids=struct.unpack(f"<{len(data) // 4}I", data),
        logprobs=tuple(
            TokenLogprobs(_logprob(item.chosen), tuple(map(_logprob, item.top))) for item in response.logprobs
        ),
        finish_reason=FinishReason(response.finish_reason),
        precision=Precision(response.precision),
        usage=to_usage(response.usage) if response.HasField("usage") else None,
        flagged=_verdict(response.screen) if response.HasField("screen") else None,
        result=ResultHandle(response.result.handle, response.result.offset) if response.HasField("result") else None,
        from_cache=response.from_cache,
    )


def encode_attach(handle: str, offset: int) -> pb.AttachResultRequest:
    """Raises InvalidRequest for an offset that the wire cannot hold."""
    try:
        return pb.AttachResultRequest(handle=handle, offset=offset)
    except ValueError as error:
        raise InvalidRequest(f"offset cannot be {offset}", field="offset", limit="uint64") from error


def decode_attached(handle: str, response: pb.AttachResultResponse) -> Piece:
    return replace(decode(response.piece), result=ResultHandle(handle, response.next_offset))


def decode_result(result: pb.Result) -> Result:
    return Result(
        handle=result.handle,
        request_id=result.request_id,
        model=result.model,
        state=ResultState(result.state),
        num_pieces=result.num_pieces,
        num_tokens=result.num_tokens,
        num_bytes=result.num_bytes,
        age_s=result.age_ms / 1000,
        expires_s=result.expires_ms / 1000 if result.expires_ms else None,
    )


def decode_model(model: pb.Model) -> Model:
    return Model(
        name=model.name,
        kind=model.kind,
        context_tokens=model.context_tokens,
        vocab_size=model.vocab_size,
        digest=model.digest,
        ready=model.ready,
    )


def answers(pieces: Iterable[Piece]) -> list[Answer]:
    """The whole answers, by index. Raises EngineFault where the stream ended without usage, its last word."""
    by_index: dict[int, list[Piece]] = {}
    usage = flagged = result = None
    precision = Precision.ANY
    for piece in pieces:
        by_index.setdefault(piece.index, []).append(piece)
        usage = piece.usage or usage
        flagged = piece.flagged or flagged
        result = piece.result or result
        precision = piece.precision or precision
    if usage is None:
        raise EngineFault("the stream ended before the answer did")
    return [
        Answer(
            request_id=group[0].request_id,
            index=index,
            text="".join(piece.text for piece in group),
            token_ids=tuple(token_id for piece in group for token_id in piece.token_ids),
            logprobs=tuple(logprobs for piece in group for logprobs in piece.logprobs),
            finish_reason=group[-1].finish_reason,
            precision=precision,
            usage=usage,
            flagged=flagged,
            result=result,
            from_cache=group[0].from_cache,
        )
        for index, group in sorted(by_index.items())
    ]


def named(kind: type[Names], field: str, name: str) -> Names:
    """Raises InvalidRequest that names `field` and what is known."""
    try:
        return kind[name.upper()]
    except KeyError:
        known = ", ".join(member.name.lower() for member in kind)
        raise InvalidRequest(f"{field} {name!r} is unknown, must be one of {known}", field=field, limit=known) from None


def _put_sla(request: pb.GenerateRequest, options: CallOptions) -> None:
    try:
        if (first_token_ms := options.get("sla_first_token_ms")) is not None:
            request.sla.first_token_ms = first_token_ms
        if (total_ms := options.get("sla_total_ms")) is not None:
            request.sla.total_ms = total_ms
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"the SLA is no number of ms: {error}", field="sla", limit="int64") from error
    if (on_miss := options.get("on_miss")) is not None:
        known = [name.removeprefix("ON_MISS_").lower() for name in pb.OnMiss.keys()][1:]  # noqa: SIM118 - an enum wrapper is no mapping
        if on_miss not in known:
            raise InvalidRequest(f"on_miss {on_miss!r} is unknown", field="sla.on_miss", limit=", ".join(known))
        request.sla.on_miss = pb.OnMiss.Value(f"ON_MISS_{on_miss.upper()}")


def _verdict(proto: types_pb2.ScreenVerdict) -> Verdict:
    return Verdict(proto.category, proto.score, proto.model)


def _put_prompt(request: pb.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
        return
    items = list(prompt)
    if items and isinstance(items[0], Message | Mapping):
        request.chat.SetInParent()
        for item in items:
            request.chat.messages.append(_message(item))
        return
    try:
        request.tokens.token_ids = struct.pack(f"<{len(items)}I", *items)
    except struct.error as error:
        raise InvalidRequest(
            f"the prompt is no text, no token ids and no chat: {error}", field="prompt", limit="uint32"
        ) from error


def _message(item: object) -> pb.ChatMessage:
    match item:
        case Message(role, content):
            return pb.ChatMessage(role=role, content=content)
        case {"role": str(role), "content": str(content)}:
            return pb.ChatMessage(role=role, content=content)
        case _:
            raise InvalidRequest(
                "a chat message needs role and content", field="chat.messages", limit="role and content"
            )


def _put_constraint(sampling: types_pb2.Sampling, name: str, value: object) -> None:
    if (given := sampling.WhichOneof("constraint")) is not None:
        raise InvalidRequest(
            f"sampling.{given} and sampling.{name} cannot both hold", field=f"sampling.{name}", limit="one of them"
        )
    try:
        if name == "json_schema" and isinstance(value, Mapping):
            value = json.dumps(value)
        if name == "choice":
            sampling.choice.texts.extend([value] if isinstance(value, str) else value)  # type: ignore[arg-type]
            sampling.choice.SetInParent()
        else:
            setattr(sampling, name, value)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"sampling.{name} cannot be kept: {error}", field=f"sampling.{name}", limit="its type on the wire"
        ) from error


def _put_option(sampling: types_pb2.Sampling, name: str, value: object) -> None:
    field = f"sampling.{name}"
    if name not in sampling.DESCRIPTOR.fields_by_name:
        raise InvalidRequest(f"{field} is no setting", field=field, limit="see SamplingOptions")
    if name == "stop" and isinstance(value, str):
        value = [value]
    try:
        if isinstance(value, Sequence):
            getattr(sampling, name).extend(value)
        elif isinstance(value, Mapping):
            getattr(sampling, name).update(value)
        else:
            setattr(sampling, name, value)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"{field} cannot be {value!r}: {error}", field=field, limit="its type on the wire"
        ) from error


def _logprob(item: types_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(item.token_id, item.logprob)


def to_usage(usage: types_pb2.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens)
