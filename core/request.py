"""What a caller asks for: class, precision, sampling settings; and why an answer ends."""

import math
from dataclasses import dataclass
from enum import IntEnum

from headrace.core.constraint import Constraint
from headrace.core.errors import InvalidRequest

MAX_SEED = 2**64 - 1
MAX_ANSWERS = 16
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 300
MAX_LOGIT_BIAS = 100.0
DEFAULT_MAX_TOKENS = 256


class QosClass(IntEnum):
    """Quality of service; the lower the number, the sooner. Values equal those on the wire."""

    REALTIME = 1
    NORMAL = 2
    BATCH = 3


class Precision(IntEnum):
    """Numeric precision of weights and products. Values equal those on the wire; ANY is no wish."""

    ANY = 0
    FP32 = 1
    BF16 = 2
    FP16 = 3
    INT8 = 4

    @classmethod
    def known(cls, number: int) -> "Precision":
        """The precision of that number on the wire; ANY for one that this version does not know."""
        return cls(number) if number in _PRECISIONS else cls.ANY


_PRECISIONS: frozenset[int] = frozenset(Precision)


class FinishReason(IntEnum):
    """Why an answer ended. Values equal those on the wire; NONE is not ended yet."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    DEADLINE = 4
    PARTIAL = 5
    FAULT = 6


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; a penalty of its neutral value is off.

    `logprobs` is the number of alternatives reported with each token, None for no logprobs at all. `constraint` is what
    the answer's text must be.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    n: int = 1
    ignore_eos: bool = False
    constraint: Constraint | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether tokens have other logits than the model's."""
        penalties = (self.repetition_penalty != 1.0, self.presence_penalty != 0.0, self.frequency_penalty != 0.0)
        return any(penalties) or bool(self.logit_bias)

    def validate(self, vocab_size: int) -> None:
        """Raises InvalidRequest, naming the field and its limit, on the first setting that cannot be obeyed."""
        bounds: list[tuple[str, float, float, float]] = [
            ("sampling.max_tokens", self.max_tokens, 1, math.inf),
            ("sampling.min_tokens", self.min_tokens, 0, self.max_tokens),
            ("sampling.temperature", self.temperature, 0, 100),
            ("sampling.top_k", self.top_k, 0, vocab_size),
            ("sampling.min_p", self.min_p, 0, 1),
            ("sampling.presence_penalty", self.presence_penalty, -2, 2),
            ("sampling.frequency_penalty", self.frequency_penalty, -2, 2),
            ("sampling.n", self.n, 1, MAX_ANSWERS),
            ("sampling.seed", self.seed, 0, MAX_SEED),
            ("sampling.logprobs", self.logprobs or 0, 0, MAX_LOGPROBS),
            ("sampling.stop", len(self.stop), 0, MAX_STOP_STRINGS),
            ("sampling.stop_token_ids", len(self.stop_token_ids), 0, MAX_STOP_TOKEN_IDS),
        ]
        for field, value, low, high in bounds:
            if not low <= value <= high:  # also refuses NaN
                raise InvalidRequest(
                    f"{field} is {value}, must be {low} to {high}", field=field, limit=f"{low}..{high}"
                )
        for field, value in (("sampling.top_p", self.top_p), ("sampling.repetition_penalty", self.repetition_penalty)):
            high = 1.0 if field.endswith("top_p") else 10.0
            if not 0 < value <= high:
                raise InvalidRequest(
                    f"{field} is {value}, must be above 0, at most {high:g}", field=field, limit=f"(0, {high:g}]"
                )
        if any(not 0 < len(stop.encode()) <= MAX_STOP_BYTES for stop in self.stop):
            raise InvalidRequest(
                f"sampling.stop has a string that is empty or over {MAX_STOP_BYTES} bytes",
                field="sampling.stop",
                limit=f"1..{MAX_STOP_BYTES} bytes",
            )
        if any(not 0 <= token < vocab_size for token in self.stop_token_ids):
            raise InvalidRequest(
                f"sampling.stop_token_ids has an id outside the vocabulary of {vocab_size}",
                field="sampling.stop_token_ids",
                limit=f"0..{vocab_size - 1}",
            )
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidRequest(
                f"sampling.logit_bias has {len(self.logit_bias)} tokens, must have {MAX_LOGIT_BIASES} at most",
                field="sampling.logit_bias",
                limit=f"{MAX_LOGIT_BIASES} tokens",
            )
        for token, added in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"sampling.logit_bias has token {token}, outside the vocabulary of {vocab_size}",
                    field="sampling.logit_bias",
                    limit=f"0..{vocab_size - 1}",
                )
            if not -MAX_LOGIT_BIAS <= added <= MAX_LOGIT_BIAS:  # also refuses NaN
                raise InvalidRequest(
                    f"sampling.logit_bias adds {added:g} to token {token}, must be -{MAX_LOGIT_BIAS:g} to"
                    f" {MAX_LOGIT_BIAS:g}",
                    field="sampling.logit_bias",
                    limit=f"-{MAX_LOGIT_BIAS:g}..{MAX_LOGIT_BIAS:g}",
                )
        if self.greedy and (self.top_k > 1 or self.top_p < 1 or self.min_p > 0):
            raise InvalidRequest(
                "sampling.temperature is 0 (greedy): top_k, top_p, min_p cannot apply, leave them out or set it",
                field="sampling.temperature",
                limit="> 0 with top_k, top_p or min_p",
            )
        if self.constraint is not None:
            self.constraint.validate()
            if self.min_tokens:
                raise InvalidRequest(
                    f"sampling.min_tokens cannot apply with {self.constraint.field}, which says where an answer ends",
                    field="sampling.min_tokens",
                    limit=f"0 with {self.constraint.field}",
                )
