"""Generations: an inference request to the gateway's own, and its pieces to inference responses.

Tensors and parameters are those of Triton's backend for vLLM, so that what talks to that talks to this.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.inference import inference_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest
from headrace.core.model import ModelInfo
from headrace.core.request import MAX_ANSWERS, FinishReason
from headrace.gateway.generation import TOKEN_BYTES
from headrace.gateway.kserve import catalogue as names
from headrace.gateway.kserve.asked import Asked, read_asked
from headrace.gateway.kserve.parameters import UINT32, UINT64, Parameters
from headrace.gateway.kserve.tensors import BYTES, Tensor, text_of

_ON_MISS = {
    "partial": gateway_pb2.ON_MISS_PARTIAL,
    "cancel": gateway_pb2.ON_MISS_CANCEL,
    "continue": gateway_pb2.ON_MISS_CONTINUE,
}
_WHOLE = ("max_tokens", "min_tokens")
_REASONS = {each: each.name.lower().encode() for each in FinishReason} | {FinishReason.NONE: b"None"}
"""As vLLM's backend spells them."""
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True)
class AskedGeneration:
    """`stream`: a response with each piece. `outputs` are those to send, in order; `echo` goes before each answer."""

    asked: Asked
    request: gateway_pb2.GenerateRequest
    stream: bool
    echo: str
    outputs: tuple[str, ...]

    @property
    def num_answers(self) -> int:
        sampling = self.request.sampling
        return sampling.n if sampling.HasField("n") else 1


def decode_generation(
    request: pb.ModelInferRequest, inputs: Mapping[str, Tensor], model: ModelInfo, may_stream: bool
) -> AskedGeneration:
    """`may_stream`: the call may be answered more than once. Raises InvalidRequest that names tensor or parameter."""
    parameters = Parameters(request.parameters)
    if (joined := _text(inputs, names.SAMPLING_PARAMETERS)) is not None:
        parameters.join(joined, names.SAMPLING_PARAMETERS)
    asked = read_asked(request, parameters, [spec.name for spec in names.signature(model).outputs])
    stream = _flag(inputs, parameters, names.STREAM) or False
    if stream and not may_stream:
        raise InvalidRequest(
            "stream: ModelInfer answers once, ModelStreamInfer streams", field=names.STREAM, limit="ModelStreamInfer"
        )
    text, token_ids = _text(inputs, names.TEXT_INPUT), inputs.get(names.INPUT_IDS)
    if (text is None) == (token_ids is None):
        limit = f"{names.TEXT_INPUT} or {names.INPUT_IDS}"
        raise InvalidRequest(f"one of {limit} is needed, and not both", field=names.TEXT_INPUT, limit=limit)
    exclude = _flag(inputs, parameters, names.EXCLUDE_INPUT)
    if exclude is False and (stream or text is None):
        raise InvalidRequest(
            f"{names.EXCLUDE_INPUT} is false, and only whole answers to a text can begin with it",
            field=names.EXCLUDE_INPUT,
            limit="true with stream or input_ids",
        )
    echo = text if text is not None and not stream and not exclude else ""
    wanted = [name for name in names.ON_REQUEST if _flag(inputs, parameters, f"return_{name}")]
    generate = gateway_pb2.GenerateRequest(
        model=model.name,
        sampling=_sampling(parameters),
        qos_class=asked.qos,  # type: ignore[arg-type]
        precision=asked.precision,  # type: ignore[arg-type]
        request_id=asked.request_id,
    )
    _sla(parameters, generate)
    parameters.flag("triton_enable_empty_final_response")  # the last response says that it is; no empty one follows
    parameters.finish()
    if text is not None:
        if not text:
            raise InvalidRequest(f"{names.TEXT_INPUT} is empty", field=names.TEXT_INPUT, limit="1 character at least")
        generate.text = text
    elif token_ids is not None:
        generate.tokens.token_ids = _token_ids(token_ids)
    outputs = tuple(asked.outputs) or (names.TEXT_OUTPUT, *wanted)
    return AskedGeneration(asked, generate, stream, echo, outputs)


@dataclass(slots=True)
class Answers:
    """What has come of a request's answers since the last response."""

    asked: AskedGeneration
    texts: list[str] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    finish: list[FinishReason] = field(default_factory=list)
    last: gateway_pb2.GenerateResponse | None = None

    def __post_init__(self) -> None:
        n = self.asked.num_answers
        self.texts, self.num_tokens, self.finish = [self.asked.echo] * n, [0] * n, [FinishReason.NONE] * n

    def add(self, piece: gateway_pb2.GenerateResponse) -> None:
        self.texts[piece.index] += piece.text
        self.num_tokens[piece.index] += len(piece.token_ids) // TOKEN_BYTES
        if piece.finish_reason:
            self.finish[piece.index] = FinishReason(piece.finish_reason)
        if piece.HasField("usage"):
            self.last = piece

    def tensors(self) -> list[Tensor]:
        """Those wanted. The prompt's length is known at the end only."""
        n = len(self.texts)
        made = {
            names.TEXT_OUTPUT: Tensor(names.TEXT_OUTPUT, BYTES, (n,), [text.encode() for text in self.texts]),
            names.FINISH_REASON: Tensor(names.FINISH_REASON, BYTES, (n,), [_REASONS[each] for each in self.finish]),
            names.NUM_OUTPUT_TOKENS: Tensor(names.NUM_OUTPUT_TOKENS, "UINT32", (n,), np.array(self.num_tokens, "<u4")),
        }
        if self.last is not None:
            prompt_tokens = np.array([self.last.usage.prompt_tokens], "<u4")
            made[names.NUM_INPUT_TOKENS] = Tensor(names.NUM_INPUT_TOKENS, "UINT32", (1,), prompt_tokens)
        return [made[name] for name in self.asked.outputs if name in made]


def _sampling(parameters: Parameters) -> types_pb2.Sampling:
    sampling = types_pb2.Sampling(
        stop=parameters.texts("stop"),
        stop_token_ids=parameters.integers("stop_token_ids", UINT32),
        ignore_eos=parameters.flag("ignore_eos") or False,
    )
    given = {name: parameters.integer(name, UINT32) for name in _WHOLE}
    given["top_k"] = _top_k(parameters.integer("top_k", UINT32, lowest=-1))
    given["n"] = parameters.integer("n", MAX_ANSWERS, lowest=1)
    given["seed"] = parameters.integer("seed", UINT64)
    given_floats = {name: parameters.number(name) for name in _FLOATS}
    for name, value in (given | given_floats).items():
        if value is not None:
            setattr(sampling, name, value)
    _constrain(parameters, sampling)
    return sampling


def _constrain(parameters: Parameters, sampling: types_pb2.Sampling) -> None:
    """What the answer's text must be. Raises InvalidRequest where several say so."""
    texts = parameters.texts("choice") if parameters.has("choice") else None
    given: dict[str, Any] = {name: parameters.text(name) for name in ("json_schema", "regex", "grammar")}
    given |= {"json_object": parameters.flag("json_object") or None, "choice": texts}
    names_given = [name for name, value in given.items() if value is not None]
    if len(names_given) > 1:
        field = f"parameters.{names_given[1]}"
        raise InvalidRequest(f"{field} is not all that the answer is bound to", field=field, limit="one of them")
    for name in names_given:
        if name == "choice":
            sampling.choice.SetInParent()
            sampling.choice.texts.extend(given[name])
        else:
            setattr(sampling, name, given[name])


def _top_k(given: int | None) -> int | None:
    return 0 if given == -1 else given  # off, as vLLM spells it


def _sla(parameters: Parameters, generate: gateway_pb2.GenerateRequest) -> None:
    for name in ("first_token_ms", "total_ms"):
        if (value := parameters.integer(f"sla_{name}", UINT32)) is not None:
            setattr(generate.sla, name, value)
    if (on_miss := parameters.choice("sla_on_miss", _ON_MISS)) is not None:
        generate.sla.on_miss = on_miss  # type: ignore[assignment]


def _text(inputs: Mapping[str, Tensor], name: str) -> str | None:
    value = _element(inputs, name)
    return None if value is None else text_of(value, name)


def _flag(inputs: Mapping[str, Tensor], parameters: Parameters, name: str) -> bool | None:
    """From its tensor, else from its parameter."""
    given, value = parameters.flag(name), _element(inputs, name)
    return given if value is None else bool(value)


def _element(inputs: Mapping[str, Tensor], name: str) -> Any:
    """The only one of a tensor; None where there is no such tensor."""
    tensor = inputs.get(name)
    if tensor is None:
        return None
    if len(tensor.values) != 1:
        raise InvalidRequest(f"{name} has {len(tensor.values)} elements, must have 1", field=name, limit="1 element")
    return tensor.values[0]


def _token_ids(tensor: Tensor) -> bytes:
    """One prompt [T] or [1, T]; whether the model knows them is for the gateway's own check."""
    if len(tensor.shape) not in (1, 2) or (len(tensor.shape) == 2 and tensor.shape[0] != 1):
        raise InvalidRequest(
            f"{tensor.name} has shape {list(tensor.shape)}, must be one prompt",
            field=tensor.name,
            limit="[T] or [1, T]",
        )
    values = np.asarray(tensor.values)
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= UINT32:
        raise InvalidRequest(f"{tensor.name} has an id outside 0..{UINT32}", field=tensor.name, limit=f"0..{UINT32}")
    return values.astype("<u4").tobytes()
