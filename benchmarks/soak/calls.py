"""One call of a soak: what it asks for, how its caller behaves, and how it ended. Judging is pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.benchmarks.disturbances import VICTIMS, Disturbance, met
from headrace.client import FinishReason, Piece
from headrace.core.errors import (
    Cancelled,
    DeadlineMissed,
    Draining,
    HeadraceError,
    InvalidRequest,
    NoExecutor,
    NotFound,
    Overloaded,
    Unavailable,
)


class Manner(StrEnum):
    """How a caller behaves."""

    PATIENT = "patient"
    SLOW = "slow"  # waits before each piece
    FICKLE = "fickle"  # hangs up after some pieces
    HURRIED = "hurried"  # has a deadline that is hard to meet
    MALFORMED = "malformed"  # sends bytes that are no message, or a message that makes no sense


class Fate(StrEnum):
    """What became of a call. `cut` went with its gateway; `failed` should not be."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    CUT = "cut"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt (text or chat) with its options, and after how many pieces a fickle caller hangs up."""

    manner: Manner
    prompt: str | Sequence[Mapping[str, str]]
    options: Mapping[str, Any]
    n: int = 1
    num_pieces: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended: by its caller (`hung_up`), by an error, or with its last piece. `fault` is what is wrong with
    a whole answer; '' where nothing is."""

    manner: Manner
    asked_s: float
    ended_s: float
    num_pieces: int = 0
    hung_up: bool = False
    error: HeadraceError | None = None
    fault: str = ""


REFUSALS = (InvalidRequest, NotFound, Overloaded, NoExecutor, Draining)


def fate(call: Ended, disturbances: Iterable[Disturbance]) -> Fate:
    """A refusal comes before any piece. A deadline that is hard to meet is a cancellation that was asked for. Only the
    service that the caller speaks to, the gateway unless it is malformed, may take a call with it."""
    if call.hung_up:
        return Fate.CANCELLED
    error = call.error
    if error is None:
        return Fate.FAILED if call.fault else Fate.FINISHED
    if isinstance(error, REFUSALS) and not call.num_pieces:
        return Fate.REFUSED
    if isinstance(error, DeadlineMissed) and call.manner is Manner.HURRIED:
        return Fate.CANCELLED
    spoken_to = VICTIMS if call.manner is Manner.MALFORMED else ("gateway",)
    if isinstance(error, Unavailable | Cancelled) and met(disturbances, call.asked_s, call.ended_s, *spoken_to):
        return Fate.CUT
    return Fate.FAILED


def fault_of(pieces: Sequence[Piece], n: int) -> str:
    """What is wrong with the pieces of a call that ended without an error: each of the n answers must have one end, its
    last piece, and the usage must count the tokens that came."""
    if not pieces or (usage := pieces[-1].usage) is None:
        return "no usage at the end"
    for index in range(n):
        own = [piece for piece in pieces if piece.index == index]
        if [bool(piece.finish_reason) for piece in own] != [False] * (len(own) - 1) + [True]:
            return f"answer {index} of {n} did not end once, with its last piece"
        if own[-1].finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return f"answer {index} of {n} ended with {own[-1].finish_reason.name}"
    if {piece.index for piece in pieces} != set(range(n)):
        return f"more answers than {n}"
    num_tokens = sum(len(piece.token_ids) for piece in pieces)
    if num_tokens != usage.completion_tokens:
        return f"{num_tokens} tokens came, {usage.completion_tokens} were counted"
    return ""
