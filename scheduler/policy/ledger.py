"""Who holds how much of an executor: slots and KV blocks promised at dispatch, by one owner."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core.request import QosClass
from headrace.scheduler.policy.events import Request


@dataclass(frozen=True, slots=True)
class Shape:
    """An executor's capacity. A slot is a row of the running batch, a block `block_tokens` tokens of KV."""

    num_slots: int
    num_blocks: int
    block_tokens: int


class Need(NamedTuple):
    """What one request takes at most, to its last token."""

    num_slots: int
    num_blocks: int


def need_of(request: Request, block_tokens: int) -> Need:
    """A slot an answer; its blocks to the last token, where all answers share the prompt's full blocks."""
    shared = request.prompt_tokens // block_tokens
    each = -(-(request.prompt_tokens + request.max_output_tokens) // block_tokens) - shared
    return Need(request.n, shared + request.n * each)


@dataclass(slots=True, eq=False)
class Reservation:
    """Capacity held for a request. `request` is None where a running one was first heard of from its executor.

    A displaced one is `paused`: it holds no slots, and no blocks either once its KV is `dropped`. One that
    `keeps_place` is not displaced again.
    """

    need: Need
    request: Request | None
    started: bool
    paused: bool = False
    dropped: bool = False
    num_displacements: int = 0
    keeps_place: bool = False
    named: bool = False  # as displaced, by its executor, since it was resumed

    @property
    def held(self) -> Need:
        """What it holds now."""
        if not self.paused:
            return self.need
        return Need(0, 0 if self.dropped else self.need.num_blocks)


@dataclass(slots=True, eq=False)
class Ledger:
    """The reservations of one executor by request id.

    `paused` are those displaced, in the order of their displacement; `resumed` those that have been told to go on and
    are not known to have heard of it.
    """

    shape: Shape
    reservations: dict[str, Reservation] = field(default_factory=dict)
    num_slots: int = 0
    num_blocks: int = 0
    paused: dict[str, Reservation] = field(default_factory=dict)
    resumed: dict[str, Reservation] = field(default_factory=dict)
    _running: dict[QosClass, dict[str, Reservation]] = field(default_factory=dict)

    def reserve(self, request_id: str, reservation: Reservation) -> None:
        """The id must hold nothing yet."""
        self.reservations[request_id] = reservation
        held = reservation.held
        self.num_slots += held.num_slots
        self.num_blocks += held.num_blocks
        if reservation.paused:
            self.paused[request_id] = reservation
        elif reservation.started:
            self._runs(request_id, reservation)

    def reserve_unknown(self, request_id: str, *, paused: bool = False) -> None:
        """For a running request of unknown size: one slot and an even share of the blocks, until it ends.

        A guess; the executor's own reservations keep its memory safe while it holds.
        """
        share = self.shape.num_blocks // self.shape.num_slots
        self.reserve(request_id, Reservation(Need(1, share), None, started=True, paused=paused))

    def start(self, request_id: str) -> None:
        """What was promised to it has been taken."""
        reservation = self.reservations[request_id]
        if not reservation.started:
            reservation.started = True
            self._runs(request_id, reservation)

    def release(self, request_id: str) -> Reservation | None:
        """Frees what the id holds; None where it holds nothing."""
        reservation = self.reservations.pop(request_id, None)
        if reservation is not None:
            held = reservation.held
            self.num_slots -= held.num_slots
            self.num_blocks -= held.num_blocks
            self.paused.pop(request_id, None)
            self.resumed.pop(request_id, None)
            self._stops(request_id, reservation)
        return reservation

    def pause(self, request_id: str, *, drop_kv: bool, most: int | None = None) -> None:
        """A running one gives its slots, and with `drop_kv` its blocks; a paused one may give its blocks too.

        After `most` times it keeps its place; None: this time does not count.
        """
        reservation = self.reservations[request_id]
        before = reservation.held
        if not reservation.paused:
            reservation.paused = True
            if most is not None:
                reservation.num_displacements += 1
                reservation.keeps_place = reservation.num_displacements >= most
            self._stops(request_id, reservation)
            self.resumed.pop(request_id, None)
            self.paused[request_id] = reservation
        reservation.dropped = reservation.dropped or drop_kv
        self._moved(before, reservation.held)

    def resume(self, request_id: str) -> None:
        """It has its slots and blocks again."""
        reservation = self.paused.pop(request_id)
        before = reservation.held
        reservation.paused = reservation.dropped = reservation.named = False
        self._moved(before, reservation.need)
        self.resumed[request_id] = reservation

    def confirm(self, paused_ids: Collection[str]) -> None:
        """The executor has named all that are displaced on it: who was resumed and is not among them runs.

        Only now may it be displaced again: another's start would else overtake the word that it may go on.
        """
        for request_id in [each for each in self.resumed if each not in paused_ids]:
            self._runs(request_id, self.resumed.pop(request_id))

    def doubt(self, request_id: str) -> None:
        """It does not run, as was thought, and is told to."""
        reservation = self.reservations[request_id]
        reservation.named = False
        self._stops(request_id, reservation)
        self.resumed[request_id] = reservation

    def can_resume(self, reservation: Reservation) -> bool:
        """Whether its slots are free, and where it lost them its blocks."""
        need, more_blocks = reservation.need, reservation.need.num_blocks - reservation.held.num_blocks
        return self.has_slots(need) and (not more_blocks or self.has_blocks(Need(0, more_blocks)))

    def displaceable(self, qos_class: QosClass) -> Iterator[tuple[str, Reservation]]:
        """Running requests of the class that may be displaced, the last started first: it loses least."""
        return reversed(self._running.get(qos_class, {}).items())

    def has_displaceable(self, qos_class: QosClass) -> bool:
        return bool(self._running.get(qos_class))

    def has_slots(self, need: Need) -> bool:
        return self.num_slots + need.num_slots <= self.shape.num_slots

    def has_blocks(self, need: Need) -> bool:
        return self.num_blocks + need.num_blocks <= self.shape.num_blocks

    @property
    def load(self) -> float:
        """The larger share in use, of slots or of blocks; above 1 where unknown requests hold more than there is."""
        shape = self.shape
        slots, blocks = self.num_slots / shape.num_slots, self.num_blocks / shape.num_blocks
        return slots if slots > blocks else blocks

    def _moved(self, before: Need, after: Need) -> None:
        self.num_slots += after.num_slots - before.num_slots
        self.num_blocks += after.num_blocks - before.num_blocks

    def _runs(self, request_id: str, reservation: Reservation) -> None:
        if reservation.request is not None and not reservation.keeps_place:
            self._running.setdefault(reservation.request.qos_class, {})[request_id] = reservation

    def _stops(self, request_id: str, reservation: Reservation) -> None:
        if reservation.request is not None:
            self._running.get(reservation.request.qos_class, {}).pop(request_id, None)
