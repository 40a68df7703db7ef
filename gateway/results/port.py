"""What a store of results does, whatever keeps them. Times are seconds of the system's clock."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.core.result_state import ResultState


@dataclass(frozen=True, slots=True)
class Summary:
    """All of a result but its pieces. It is lost if it still runs at `lost_s`, and dropped at `expires_s`."""

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

    def at(self, now_s: float) -> "Summary":
        """As it is seen then."""
        if self.state is ResultState.RUNNING and self.lost_s <= now_s:
            return replace(self, state=ResultState.LOST)
        return self


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all results together; running ones are never dropped to keep them."""

    max_results: int
    max_bytes: int


class ResultStore(Protocol):
    """Every call raises Unavailable where the store cannot be reached within LONGEST_S."""

    async def open(self, summary: Summary) -> None:
        """Makes room, dropping what has expired and then the oldest that have ended. Raises Overloaded."""

    async def append(
        self, handle: str, first: int, pieces: Sequence[bytes], num_tokens: int, lost_s: float, expires_s: float
    ) -> bool:
        """Pieces from number `first` on (again where they are there already), and new times. False where it is gone."""

    async def close(self, handle: str, state: ResultState, reason: str, message: str, expires_s: float) -> bool:
        """Nothing more comes. False where it is gone."""

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
