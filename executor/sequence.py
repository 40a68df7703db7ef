"""An answer being generated: its tokens, its blocks, how far the engine has got with it.

The worker's thread owns it; nothing else touches it after submission.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import FinishReason, Sampling
from headrace.executor.event_wait import OverdueWait
from headrace.executor.guide import Guide
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import Reservation
from headrace.executor.sampler import SequenceSampler
from headrace.executor.speculation import Acceptance


@dataclass(frozen=True, slots=True)
class Job:
    """One request as it arrives: n answers to one prompt.

    `deadline` is monotonic seconds; `session` says whose it is; `displaced` are the requests that make room for it,
    each with whether its KV goes too; `trace` is the spans' business only; prompts of another `scope` share no cache.
    One that a lost executor had begun brings its `answers`, each index's tokens so far, and says which have `ended`.
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
    answers: tuple[NDArray[np.uint32], ...] = ()
    ended: frozenset[int] = frozenset()

    @property
    def open_answers(self) -> list[int]:
        """Indices of the answers that are to be made, or to be gone on with."""
        return [index for index in range(self.sampling.n) if index not in self.ended]

    def known(self, index: int) -> NDArray[np.uint32]:
        """The answer's tokens so far."""
        return self.answers[index] if index < len(self.answers) else self.prompt_ids[:0]


@dataclass(slots=True, eq=False)
class Sequence:
    """`token_ids` [capacity] holds prompt and answer, the first `num_tokens` of them valid; `past` are in the KV.

    `for_forks` are the blocks of answers that begin where the prompt ends: new ones, the indices `to_fork`, or
    `replayed` ones, whose KV was `dropped` here or lost elsewhere. `digests` are the hashes of its full blocks as far
    as known, for the cache, from where `cached_tokens` of the prompt came; `prefixes` are the prompt's hashes as the
    scheduler knows them, once asked for. For the trace: `prefill_s` and `decode_s` are how long the engine took over
    its steps up to the first token and from then on, `num_chunks` counts the former; `pauses` are when it was displaced
    and resumed (0: not yet), `late_steps` when a step of it ended far later than predicted and its seconds.
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
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_chunks: int = 0
    pauses: list[tuple[int, int]] = field(default_factory=list)
    late_steps: list[tuple[int, float]] = field(default_factory=list)
    accepted_ns: int = field(default_factory=time.time_ns)
    first_token_ns: int = 0
    finish: FinishReason = FinishReason.NONE
    for_forks: list[Reservation] = field(default_factory=list)
    dropped: bool = False
    replayed: "list[Sequence]" = field(default_factory=list)
    to_fork: tuple[int, ...] = ()
    digests: list[bytes] = field(default_factory=list)
    prefixes: tuple[int, ...] | None = None
    cached_tokens: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    overdue: list[OverdueWait] = field(default_factory=list)

    def pause(self) -> None:
        """Notes that it is displaced."""
        self.pauses.append((time.time_ns(), 0))

    def resume(self) -> None:
        """Notes that it goes on."""
        if self.pauses:
            self.pauses[-1] = (self.pauses[-1][0], time.time_ns())

    def release(self) -> None:
        """Gives back what the sequence holds."""
        self.table.release()
        for reservation in self.for_forks:
            reservation.release()
        self.for_forks = []

    @property
    def guide(self) -> Guide | None:
        """Of a constrained answer."""
        return self.sampler.guide

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
        return len(self.replayed) + len(self.to_fork)

    @property
    def prefilling(self) -> bool:
        return self.past < len(self.job.prompt_ids)

    def append(self, token_id: int) -> None:
        self.token_ids[self.num_tokens] = token_id
        self.num_tokens += 1
