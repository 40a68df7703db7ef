"""What a caller hands in and gets back. Plain values, no wire format."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from headrace.core.request import FinishReason, Precision
from headrace.core.result_state import ResultState
from headrace.core.screening import Verdict

Qos = Literal["realtime", "normal", "batch"]
OnMiss = Literal["partial", "cancel", "continue"]
PrecisionName = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat: role is system, user or assistant."""

    role: str
    content: str


Prompt = str | Sequence[int] | Sequence[Message] | Sequence[Mapping[str, str]]
"""Text, token ids, or a chat; a chat's messages may be mappings with `role` and `content`."""


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen; what is left out takes the gateway's default (see types.proto).

    One of the last five says what the answer's text must be: docs/structured.md."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    logprobs: int
    ignore_eos: bool
    json_schema: str | Mapping[str, Any]
    json_object: bool
    regex: str
    choice: Sequence[str]
    grammar: str
    logit_bias: Mapping[int, float]


class CallOptions(SamplingOptions, total=False):
    """All that may be said with a prompt. Left out: class normal, the model's precision, no deadline, a drawn id, no
    cached answer (`cacheable`), and the class's SLA; 0 is no SLA. On a miss the answer ends in part (`partial`), fails
    (`cancel`), or goes on."""

    qos: Qos
    precision: PrecisionName | None
    timeout_s: float | None
    request_id: str | None
    cacheable: bool
    sla_first_token_ms: int
    sla_total_ms: int
    on_miss: OnMiss


Texts = str | Sequence[str] | Sequence[Sequence[int]]
"""One text, several, or several texts' token ids with the special tokens that the model wants."""

PoolingName = Literal["mean", "cls", "last"]


class EncodeOptions(TypedDict, total=False):
    """All that may be said with texts for an encoder. Left out: class normal, the model's precision, no deadline, a
    drawn id, and texts that are too long are refused rather than cut (`truncate`)."""

    truncate: bool
    qos: Qos
    precision: PrecisionName | None
    timeout_s: float | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural log probability, before temperature and penalties."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token, and the most probable ones, best first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class ResultHandle:
    """Where an answer is that goes on without its call; `offset` is the number of the first piece that is new."""

    handle: str
    offset: int


@dataclass(frozen=True, slots=True)
class Result:
    """An answer that goes on or has done so. `age_s` since its stream ended in part, `expires_s` from now until it is
    dropped, None while it runs."""

    handle: str
    request_id: str
    model: str
    state: ResultState
    num_pieces: int
    num_tokens: int
    num_bytes: int
    age_s: float
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of answer `index`. The last of each answer has a finish reason, the last of all has usage.

    `precision` is that which served, in the first piece of the call; ANY in the others. `flagged` is what the screen
    found in a prompt that was let pass, in the last piece of the call. `result` is where a partial answer goes on, in
    its last piece; pieces of an attached result each say where to go on after them.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    precision: Precision
    usage: Usage | None
    flagged: Verdict | None = None
    result: ResultHandle | None = None
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or a partial one and where it goes on (`result`).

    `usage` is the call's: its completion tokens are those of all its answers.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    precision: Precision
    usage: Usage
    flagged: Verdict | None = None
    result: ResultHandle | None = None
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector a text, in order: arrays of 32-bit floats, which numpy.asarray takes as they are."""

    request_id: str
    vectors: tuple["array[float]", ...]
    usage: Usage
    precision: Precision


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document by its place in the call."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The documents, best first."""

    request_id: str
    results: tuple[Ranked, ...]
    usage: Usage
    precision: Precision


@dataclass(frozen=True, slots=True)
class LabelScore:
    """A label and its probability."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Labels:
    """Each text's labels, in the texts' order, most probable first."""

    request_id: str
    results: tuple[tuple[LabelScore, ...], ...]
    usage: Usage
    precision: Precision


@dataclass(frozen=True, slots=True)
class Model:
    """`ready`: the gateway knows an executor that serves it."""

    name: str
    kind: str
    context_tokens: int
    vocab_size: int
    digest: str
    ready: bool
