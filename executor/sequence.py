"""An answer being generated: its tokens, its blocks, how far the engine has got with it.

The worker's thread owns it; nothing else touches it after submission.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import FinishReason, Sampling
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import Reservation
from headrace.executor.sampler import SequenceSampler


@dataclass(frozen=True, slots=True)
class Job:
    """One request as it arrives: n answers to one prompt.

    `deadline` is monotonic seconds; `session` says whose it is; `displaced` are the requests that make room for it,
    each with whether its KV goes too; `trace` is the spans' business only; prompts of another `scope` share no cache.
    """

    session: int
    request_id: str
    prompt_ids: NDArray[np.uint32]
    sampling: Sampling
    priority: int = 0
    deadline: float | None = None
    trace: Any = None
    scope: bytes = b""
    displaced: tuple[tuple[str, bool], ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """`token_ids` [capacity] holds prompt and answer, the first `num_tokens` of them valid; `past` are in the KV.

    `for_forks` are the blocks of answers that begin where the prompt ends: new ones, or `replayed` ones whose KV was
    `dropped`. `digests` are the hashes of its full blocks as far as known, for the cache, from where `cached_tokens` of
    the prompt came; `prefixes` are the prompt's hashes as the scheduler knows them, once asked for.
    """

    job: Job
    index: int
    arrival: int
    table: BlockTable
    sampler: SequenceSampler
    token_ids: NDArray[np.int64]
    num_tokens: int
    past: int = 0
    num_steps: int = 0
    accepted_ns: int = field(default_factory=time.time_ns)
    first_token_ns: int = 0
    finish: FinishReason = FinishReason.NONE
    for_forks: list[Reservation] = field(default_factory=list)
    dropped: bool = False
    replayed: "list[Sequence]" = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    prefixes: tuple[int, ...] | None = None
    cached_tokens: int = 0

    def release(self) -> None:
        """Gives back what the sequence holds."""
        self.table.release()
        for reservation in self.for_forks:
            reservation.release()
        self.for_forks = []

    @property
    def num_pending(self) -> int:
        """Known tokens that the engine has not seen."""
        return self.num_tokens - self.past

    @property
    def num_answer_tokens(self) -> int:
        return self.num_tokens - len(self.job.prompt_ids)

    @property
    def num_prompt_pending(self) -> int:
        """Of them, those of the prompt."""
        return len(self.job.prompt_ids) - self.past

    @property
    def forks_to_come(self) -> int:
        """How many further answers begin when the prompt is through."""
        if self.replayed:
            return len(self.replayed)
        return self.job.sampling.n - 1 if self.num_tokens == len(self.job.prompt_ids) else 0

    @property
    def prefilling(self) -> bool:
        return self.past < len(self.job.prompt_ids)

    def append(self, token_id: int) -> None:
        self.token_ids[self.num_tokens] = token_id
        self.num_tokens += 1
