"""What every service knows of a model: limits, not weights."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`context_tokens` bounds prompt plus answer; `eos_token_ids` end an answer unless it asks to go on.

    `labels`: of an encoder's classification head, one a score; () where it gives vectors.
    """

    name: str
    kind: str
    digest: str
    context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    labels: tuple[str, ...] = ()
