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

    `architecture` is what it runs on. At one padded length a row's output depends, bit for bit, on the row only. With
    `packs` a row may hold several texts, and a text's output moves in its last digits with the place that it has.
    """

    name: str
    precision: Precision
    context_tokens: int
    vocab_size: int
    output_size: int
    has_head: bool
    architecture: str = ""
    packs: bool = False


class Encoder(Protocol):
    """One loaded encoder. `forward` is called from one thread only."""

    spec: EncoderSpec

    def forward(self, token_ids: Int64, token_types: Int64, segments: Int64, positions: Int64) -> Float32:
        """[B, T] each: which text of its row a token is of, from 1, 0 for padding; and its place in it, from 0.

        Without `packs` a row has one text. Returns hidden states [B, T, H], with a head scores [B, N];
        the caller's until the next call. Raises EngineFault."""

    def close(self) -> None: ...
