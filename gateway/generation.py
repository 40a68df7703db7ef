"""The gateway's own values: a generation as asked, as placed, and as it comes back. No wire format, no effects.

Logprobs and displacements pass through untouched as wire messages: the gateway never looks inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from headrace.api.types.v1.types_pb2 import Displacement, Logprobs
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Precision, QosClass, Sampling
from headrace.core.screening import Verdict
from headrace.gateway.ports import Message

TOKEN_BYTES = 4

Prompt = str | tuple[Message, ...] | NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Wish:
    """A valid call before its prompt is token ids. `sampling.max_tokens` is final only if `max_tokens_given`."""

    request_id: str
    model: ModelInfo
    prompt: Prompt
    sampling: Sampling
    max_tokens_given: bool
    qos: QosClass
    precision: Precision


@dataclass(frozen=True, slots=True)
class Generation:
    """What goes to the scheduler (numbers) and to an executor (payload).

    `wire_id` names it inside: unlike the caller's `request_id` it is never used twice, so late frames of an earlier
    request of the same name cannot meet this one. `deadline` is on the event loop's clock, None for none. What a lost
    executor has sent comes along: each answer's tokens (little-endian uint32), which answers have ended, and how many
    tokens the shortest of the others has.
    """

    request_id: str
    wire_id: str
    model: ModelInfo
    token_ids: NDArray[np.uint32]
    sampling: Sampling
    qos: QosClass
    precision: Precision
    tenant: str
    deadline: float | None
    trace: SpanContext
    answer_token_ids: tuple[bytes, ...] = ()
    ended_answers: tuple[int, ...] = ()
    known_tokens: int = 0

    @property
    def num_open_answers(self) -> int:
        return self.sampling.n - len(self.ended_answers)


def left_ms(deadline: float | None, now: float) -> int:
    """Time left as it goes on the wire: 0 for none, at least 1 where there is one."""
    return 0 if deadline is None else max(1, round((deadline - now) * 1000))


@dataclass(frozen=True, slots=True)
class Known:
    """What another gateway has made of the answers: each one's tokens (little-endian uint32), text and finish reason,
    the precision that served, and the number of tokens of all."""

    token_ids: tuple[bytes, ...]
    text: tuple[str, ...]
    finishes: tuple[FinishReason, ...]
    precision: Precision
    num_tokens: int

    @property
    def whole(self) -> bool:
        """Nothing is left to be made."""
        return all(self.finishes)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the scheduler put a request, and who makes room for it there."""

    executor_id: str
    address: str
    batch_id: str
    batch_size: int
    precision: Precision
    batch_trace: SpanContext
    displaced: Sequence[Displacement] = ()
    padded_tokens: int = 0


@dataclass(slots=True)
class Output:
    """New tokens of one answer; `token_ids` little-endian uint32. Grows while its reader is slow."""

    index: int
    token_ids: bytes
    logprobs: list[Logprobs]
    finish: FinishReason
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int


@dataclass(slots=True)
class Piece:
    """What the caller gets of one answer at a time."""

    index: int
    text: str
    token_ids: bytes
    logprobs: Sequence[Logprobs]
    finish: FinishReason
    precision: Precision = Precision.ANY
    usage: Usage | None = None
    screen: Verdict | None = None
    from_cache: bool = False


class State(Enum):
    """Where a request stands. QUEUED -> RUNNING -> ENDED, back to QUEUED where its executor is lost, or ENDED from
    anywhere by a failure."""

    QUEUED = auto()
    RUNNING = auto()
    ENDED = auto()
