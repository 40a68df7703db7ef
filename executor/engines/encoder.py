"""What an encoder's worker asks of its engine: rectangles of padded texts in, hidden states or scores out."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import Precision
from headrace.executor.engines.protocol import Float32

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """What the engine can do. `output_size` is that of a hidden state, or the number of scores where it `has_head`.

    `architecture` is what it runs on. At one padded length a row's output depends, bit for bit, on the row only.
    """

    name: str
    precision: Precision
    context_tokens: int
    vocab_size: int
    output_size: int
    has_head: bool
    architecture: str = ""


class Encoder(Protocol):
    """One loaded encoder. `forward` is called from one thread only."""

    spec: EncoderSpec

    def forward(self, token_ids: Int64, token_types: Int64, mask: Int64) -> Float32:
        """[B, T] each, mask 1 where there is a token. Returns hidden states [B, T, H], with a head scores [B, N];
        the caller's until the next call. Raises EngineFault."""

    def close(self) -> None: ...
