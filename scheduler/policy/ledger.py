"""Who holds how much of an executor: slots and KV blocks promised at dispatch, by one owner."""

from dataclasses import dataclass, field

from headrace.scheduler.policy.events import Request


@dataclass(frozen=True, slots=True)
class Shape:
    """An executor's capacity. A slot is a row of the running batch, a block `block_tokens` tokens of KV."""

    num_slots: int
    num_blocks: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Need:
    """What one request takes at most, to its last token."""

    num_slots: int
    num_blocks: int


def need_of(request: Request, block_tokens: int) -> Need:
    """A slot an answer; its blocks to the last token, where all answers share the prompt's full blocks."""
    shared = request.prompt_tokens // block_tokens
    each = -(-(request.prompt_tokens + request.max_output_tokens) // block_tokens) - shared
    return Need(request.n, shared + request.n * each)


@dataclass(slots=True)
class Reservation:
    """Capacity held for a request. `request` is None where a running one was first heard of from its executor."""

    need: Need
    request: Request | None
    started: bool


@dataclass(slots=True, eq=False)
class Ledger:
    """The reservations of one executor by request id."""

    shape: Shape
    reservations: dict[str, Reservation] = field(default_factory=dict)
    num_slots: int = 0
    num_blocks: int = 0

    def reserve(self, request_id: str, reservation: Reservation) -> None:
        """The id must hold nothing yet."""
        self.reservations[request_id] = reservation
        self.num_slots += reservation.need.num_slots
        self.num_blocks += reservation.need.num_blocks

    def reserve_unknown(self, request_id: str) -> None:
        """For a running request of unknown size: one slot and an even share of the blocks, until it ends.

        A guess; the executor's own reservations keep its memory safe while it holds.
        """
        share = self.shape.num_blocks // self.shape.num_slots
        self.reserve(request_id, Reservation(Need(1, share), None, started=True))

    def release(self, request_id: str) -> Reservation | None:
        """Frees what the id holds; None where it holds nothing."""
        reservation = self.reservations.pop(request_id, None)
        if reservation is not None:
            self.num_slots -= reservation.need.num_slots
            self.num_blocks -= reservation.need.num_blocks
        return reservation

    def has_slots(self, need: Need) -> bool:
        return self.num_slots + need.num_slots <= self.shape.num_slots

    def has_blocks(self, need: Need) -> bool:
        return self.num_blocks + need.num_blocks <= self.shape.num_blocks

    @property
    def load(self) -> float:
        """The larger share in use, of slots or of blocks; above 1 where unknown requests hold more than there is."""
        return max(self.num_slots / self.shape.num_slots, self.num_blocks / self.shape.num_blocks)
