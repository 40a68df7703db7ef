"""What the step loop asks of an engine, and what an engine promises.

A step is ragged: the new tokens of all its rows are packed in one array. A row is one sequence's chunk of new tokens
over one block table. Engines that pad do it inside.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import Precision
from headrace.executor.event_wait import Overdue
from headrace.executor.experts.counts import ExpertCounts

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What holds for a loaded engine.

    `min_rows`: a step of fewer rows takes another kernel and may give other bits, so the loop adds dummy rows up to it.
    `min_chunk_tokens`: likewise, a prefill chunk of fewer tokens of a longer prompt.
    `num_candidates`: how many of a row's most probable tokens a step reports.
    `architecture`: what it runs on; engines that say the same are taken to be as fast with the same model.
    `extent_blocks`: how many blocks lie on whole pages together, and come and go together.
    `chunk_multiple_tokens`: prefill chunks must end at its multiples, unless the known tokens end before.
    `exact`: True if a sequence's logits depend, bit for bit, on its own tokens only, as long as the two bounds above
    are kept and known tokens that were once decoded are put in again as rows of one token each.
    """

    name: str
    precision: Precision
    vocab_size: int
    context_tokens: int
    block_tokens: int
    num_blocks: int
    kv_bytes_per_block: int
    min_rows: int
    min_chunk_tokens: int
    num_candidates: int
    exact: bool
    extent_blocks: int = 1
    chunk_multiple_tokens: int = 1
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass over B rows with T new tokens in all, of which R rows' last logits are wanted.

    token_ids [T] i64; past_lens [B] i32: tokens of the row already in its blocks; subsequence_begins [B+1] i32;
    block_indices [N] i32 with block_indices_begins [B+1] i32: each row's blocks, enough for past + new tokens;
    wanted_tokens [R] i64: positions in token_ids whose logits are wanted. predicted_s: how long the step model expects
    it to take, None while too little is known.
    """

    token_ids: Int64
    past_lens: Int32
    subsequence_begins: Int32
    block_indices: Int32
    block_indices_begins: Int32
    wanted_tokens: Int64
    predicted_s: float | None = None

    @property
    def positions(self) -> Int64:
        """Of each new token in its sequence [T]."""
        begins = self.subsequence_begins
        before = np.repeat(self.past_lens - begins[:-1], np.diff(begins))
        positions: Int64 = np.arange(len(self.token_ids), dtype=np.int64) + before
        return positions


class StepOutput(Protocol):
    """The wanted rows' results; valid until the engine's next forward."""

    @property
    def best(self) -> tuple[Int32, Float32]:
        """Each row's most probable token [R], of equal ones the lowest id, and its logit [R]. Cheap, unlike the rest;
        no token where the logit is not a finite number."""

    @property
    def candidate_ids(self) -> Int32:
        """[R, K], most probable first; equal logits by lower id."""

    @property
    def candidate_logits(self) -> Float32:
        """[R, K]."""

    def logits(self, row: int) -> Float32:
        """[V], the whole row; not a copy."""


class Engine(Protocol):
    """A loaded model. One thread owns it; `forward` blocks and releases the GIL while the device works."""

    @property
    def spec(self) -> EngineSpec: ...

    def forward(self, plan: StepPlan) -> StepOutput:
        """Writes the new tokens' KV into the rows' blocks and returns the wanted logits."""

    def copy_block(self, source: int, target: int) -> None:
        """Copies one block's KV, all layers."""

    def release_blocks(self, blocks: Int32) -> None:
        """The blocks' content is no longer wanted: their memory may go back to the system."""

    def close(self) -> None: ...


@runtime_checkable
class MappingEngine(Protocol):
    """An engine whose KV memory must be mapped before it is written."""

    def map_blocks(self, first: int, count: int) -> None:
        """Puts memory under an extent's blocks. Raises PoolExhausted, having changed nothing, where there is none."""


@runtime_checkable
class WaitingEngine(Protocol):
    """An engine that waits for a device's events within `forward`; it raises DeviceFault where one does not come."""

    def report_overdue(self, overdue: Overdue) -> None:
        """Each wait that is late is told to `overdue` from now on, in the thread of `forward`."""


@runtime_checkable
class ExpertEngine(Protocol):
    """An engine that may keep a mixture's experts on demand."""

    def expert_counts(self) -> ExpertCounts:
        """Since it was loaded; from any thread. All 0 where all experts are resident."""


@runtime_checkable
class NvidiaEngine(Protocol):
    """An engine on an NVIDIA device, which NVML then reads beside it."""

    @property
    def device_uuid(self) -> str:
        """As NVML and `nvidia-smi -L` name it: GPU-…, or MIG-…"""
