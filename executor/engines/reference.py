"""An engine whose answers can be worked out on paper; runs the built-in model `reference` and any vocabulary of bytes.

Its KV is the context itself: each block holds the token ids written to it, and logits are computed from nothing but
what is read back through the row's block table. A wrong table, a stale block or a wrong past gives a wrong answer.

The rule. Of a context t[0..n-1] let h = 0, then for each p in turn h = (2 h + t[p] + p) mod 9973. The next token is the
printable ASCII character 32 + h mod 95, unless the context holds the byte 4 (end of transmission) and n is a multiple
of 8: then it is the model's first end-of-answer id. For example "Hi" is 72, 105: h = 72, then 144 + 105 + 1 = 250;
250 mod 95 = 60, and 32 + 60 = 92 is a backslash. Order counts, and answers to different prompts stay different.

The logits. The printable characters stand on a ring of 95; one at distance d from 32 + h mod 95 has 4 - d / 4, so each
distance is a tie of two characters. Every other id v has -16 - v / 64; an end-of-answer id that is due has 8.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import EngineFault, EngineNotReady
from headrace.core.model import ModelInfo
from headrace.core.request import Precision
from headrace.executor.engines.protocol import EngineSpec, Float32, Int32, Int64, StepPlan

NUM_CANDIDATES = 64
FIRST_PRINTABLE = 32
NUM_PRINTABLE = 95
HASH_MODULUS = 9973  # the greatest prime of four digits
END_BYTE = 4
END_MULTIPLE = 8
EOS_TOKEN_ID = 256  # of the built-in model
_UNWRITTEN = -1


@dataclass(frozen=True, slots=True)
class ReferenceOutput:
    """[R, K], [R, K] and [R, V]."""

    candidate_ids: Int32
    candidate_logits: Float32
    all_logits: Float32

    @property
    def best(self) -> tuple[Int32, Float32]:
        return self.candidate_ids[:, 0], self.candidate_logits[:, 0]

    def logits(self, row: int) -> Float32:
        row_logits: Float32 = self.all_logits[row]
        return row_logits


class ReferenceEngine:
    """`step_delay_s` makes each step last, with the GIL released, as a device's would, and `row_delay_s` each row of
    it; `precision` is what it says to have, since its arithmetic is of whole numbers in any."""

    def __init__(
        self,
        info: ModelInfo,
        num_blocks: int,
        *,
        block_tokens: int = 4,
        step_delay_s: float = 0.0,
        row_delay_s: float = 0.0,
        precision: Precision = Precision.FP32,
    ) -> None:
        least = max((FIRST_PRINTABLE + NUM_PRINTABLE - 1, *info.eos_token_ids)) + 1
        if not info.eos_token_ids or info.vocab_size < least:
            raise EngineNotReady(
                f"model {info.name}: the reference engine wants an end-of-answer id and a vocabulary of {least}"
            )
        self._kv: NDArray[np.int64] = np.full((num_blocks, block_tokens), _UNWRITTEN, np.int64)
        self._powers = np.array([pow(2, power, HASH_MODULUS) for power in range(num_blocks * block_tokens)])
        self._eos_token_id = info.eos_token_ids[0]
        self._step_delay_s, self._row_delay_s = step_delay_s, row_delay_s
        self.spec = EngineSpec(
            name="reference",
            precision=precision,
            vocab_size=info.vocab_size,
            context_tokens=info.context_tokens,
            block_tokens=block_tokens,
            num_blocks=num_blocks,
            kv_bytes_per_block=self._kv[0].nbytes,
            min_rows=1,
            min_chunk_tokens=1,
            num_candidates=min(NUM_CANDIDATES, info.vocab_size),
            exact=True,
        )

    def forward(self, plan: StepPlan) -> ReferenceOutput:
        """Raises EngineFault if a row's blocks do not exist or do not hold its tokens."""
        if delay_s := self._step_delay_s + self._row_delay_s * len(plan.past_lens):
            time.sleep(delay_s)
        begins = plan.subsequence_begins
        tables = [
            self._table(plan, row, int(plan.past_lens[row] + begins[row + 1] - begins[row]))
            for row in range(len(plan.past_lens))
        ]
        for row, table in enumerate(tables):  # all rows are written before any is read: rows may share a table
            tokens = plan.token_ids[begins[row] : begins[row + 1]]
            places = np.arange(len(tokens)) + plan.past_lens[row]
            self._kv[table[places // self.spec.block_tokens], places % self.spec.block_tokens] = tokens
        rows = np.searchsorted(begins, plan.wanted_tokens, side="right") - 1
        lengths = plan.past_lens[rows] + plan.wanted_tokens - begins[rows] + 1
        logits = np.stack(
            [
                self._logits(self._kv[tables[row]].reshape(-1)[:length])
                for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
            ]
        )
        ids = np.argsort(-logits, axis=1, kind="stable")[:, : self.spec.num_candidates].astype(np.int32)
        return ReferenceOutput(ids, np.take_along_axis(logits, ids, axis=1), logits)

    def copy_block(self, source: int, target: int) -> None:
        self._kv[target] = self._kv[source]

    def release_blocks(self, blocks: Int32) -> None:
        self._kv[blocks] = _UNWRITTEN

    def close(self) -> None:
        self._kv = np.empty((0, self.spec.block_tokens), np.int64)

    def _table(self, plan: StepPlan, row: int, num_tokens: int) -> Int32:
        table = plan.block_indices[plan.block_indices_begins[row] : plan.block_indices_begins[row + 1]]
        if len(table) * self.spec.block_tokens < num_tokens:
            raise EngineFault(f"row {row} has {len(table)} blocks for {num_tokens} tokens")
        if len(table) and (table.min() < 0 or table.max() >= len(self._kv)):
            raise EngineFault(f"row {row} names a block outside 0 to {len(self._kv) - 1}")
        return table

    def _logits(self, context: Int64) -> Float32:
        logits = (-16 - np.arange(self.spec.vocab_size) / 64).astype(np.float32)
        places = np.arange(len(context))
        total = int(np.dot(self._powers[len(context) - 1 - places], context + places)) % HASH_MODULUS
        distance = np.abs(np.arange(NUM_PRINTABLE) - total % NUM_PRINTABLE)
        ring = np.minimum(distance, NUM_PRINTABLE - distance)
        logits[FIRST_PRINTABLE : FIRST_PRINTABLE + NUM_PRINTABLE] = 4 - ring / 4
        if len(context) % END_MULTIPLE == 0 and END_BYTE in context:
            logits[self._eos_token_id] = 8
        return logits


def expected_answer(prompt_ids: Sequence[int], max_tokens: int, eos_token_id: int = EOS_TOKEN_ID) -> list[int]:
    """The greedy answer by the rule above, written without the engine: at most `max_tokens` tokens, with the
    end-of-answer id last where the rule ends it."""
    context = [int(token) for token in prompt_ids]
    for _ in range(max_tokens):
        if END_BYTE in context and len(context) % END_MULTIPLE == 0:
            return [*context[len(prompt_ids) :], eos_token_id]
        total = 0
        for position, token in enumerate(context):
            total = (2 * total + token + position) % HASH_MODULUS
        context.append(FIRST_PRINTABLE + total % NUM_PRINTABLE)
    return context[len(prompt_ids) :]
