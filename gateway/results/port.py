"""What a store of results does, whatever keeps them. Times are seconds of the system's clock.

A running result belongs to one gateway at a time, under a lease: `lost_s`, which each `append` renews. Once that has
passed another gateway may take it over, which begins a new epoch; whoever writes with an earlier one is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.core.result_state import ResultState


@dataclass(frozen=True, slots=True)
class Summary:
    """All of a result but its pieces and its request. It is dropped at `expires_s`.

    `num_bytes` counts the request too, which takes `request_bytes` of it until the answer has ended. `due_s`: when the
    answer is of no use any more. `trace`: the W3C traceparent of the call.
    """

    handle: str
    tenant: str
    request_id: str
    model: str
    created_s: float
    lost_s: float
    expires_s: float
    state: ResultState = ResultState.RUNNING
    num_pieces: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    reason: str = ""
    message: str = ""
    epoch: int = 0
    due_s: float = 0.0
    request_bytes: int = 0
    trace: str = ""

    def may_be_taken(self, now_s: float, max_takeovers: int) -> bool:
        """Its gateway is gone, and another may go on with it."""
        lost = self.state is ResultState.RUNNING and self.lost_s <= now_s
        return lost and self.request_bytes > 0 and self.epoch < max_takeovers and now_s < self.due_s

    def at(self, now_s: float, max_takeovers: int) -> "Summary":
        """As it is seen then: lost only if nobody will go on with it."""
        lost = self.state is ResultState.RUNNING and self.lost_s <= now_s
        return replace(self, state=ResultState.LOST) if lost and not self.may_be_taken(now_s, max_takeovers) else self


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all results together; running ones are never dropped to keep them."""

    max_results: int
    max_bytes: int


class ResultStore(Protocol):
    """Every call raises Unavailable where the store cannot be reached within LONGEST_S."""

    async def open(self, summary: Summary, request: bytes = b"", pieces: Sequence[bytes] = ()) -> None:
        """Makes room, dropping what has expired and then the oldest that have ended. `summary` has counted both.
        Raises Overloaded."""

    async def append(
        self,
        handle: str,
        epoch: int,
        first: int,
        pieces: Sequence[bytes],
        num_tokens: int,
        lost_s: float,
        expires_s: float,
    ) -> bool:
        """Pieces from number `first` on (again where they are there already), and new times. False where it is gone or
        of a later epoch."""

    async def close(
        self, handle: str, epoch: int, state: ResultState, reason: str, message: str, expires_s: float
    ) -> bool:
        """Nothing more comes, and the request is forgotten. False where it is gone or of a later epoch."""

    async def lost(self, now_s: float, most: int) -> list[Summary]:
        """Up to `most` running results whose lease has run out, those first whose did so first."""

    async def take(self, handle: str, epoch: int, now_s: float, lost_s: float, expires_s: float) -> bytes | None:
        """Begins the epoch after `epoch` under a new lease, and returns the request. None where another has been
        quicker, the owner is back, or it has ended: of all who try one succeeds."""

    async def find(self, handle: str) -> Summary | None: ...

    async def read(self, handle: str, first: int, most: int) -> list[bytes]:
        """Up to `most` pieces from number `first` on."""

    async def list(self, tenant: str) -> list[Summary]:
        """The newest first."""

    async def drop(self, handle: str) -> None: ...


LONGEST_S = 5.0
"""A store that has not answered for so long counts as not there."""

RETRY_AFTER_S = 5.0
"""When there may be room again in a store that is full of results being made."""
