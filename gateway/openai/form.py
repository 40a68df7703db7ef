"""What a generation asks for, and in what form its answers go out; chats and completions differ in that only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.types.v1.types_pb2 import Logprobs
from headrace.core.request import FinishReason

FINISH_REASONS: dict[int, str] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
"""Other ends are errors, or not asked for at this door."""


@dataclass(slots=True)
class Answer:
    """A whole answer, once all of its pieces are in."""

    text: list[str] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish: int = 0

    def add(self, piece: gateway_pb2.GenerateResponse) -> None:
        self.text.append(piece.text)
        self.logprobs.extend(piece.logprobs)
        self.finish = piece.finish_reason


class Form(Protocol):
    """`whole` and `part` name the objects of whole answers and of a stream's events."""

    id_prefix: ClassVar[str]
    whole: ClassVar[str]
    part: ClassVar[str]

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A whole answer."""

    def delta(self, index: int, piece: gateway_pb2.GenerateResponse, begun: bool, offset: int) -> dict[str, Any]:
        """The next piece of an answer; `begun`: it is not the first; `offset`: characters before it."""


@dataclass(frozen=True, slots=True)
class AskedGeneration:
    """A request for each prompt, `num_answers` to each. `digest` is the model's."""

    requests: Sequence[gateway_pb2.GenerateRequest]
    num_answers: int
    form: Form
    digest: str
    stream: bool
    include_usage: bool
