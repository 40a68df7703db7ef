"""Who makes room for a REALTIME request that finds none: the cheapest of BATCH, then of NORMAL, on one executor."""

from headrace.core.request import QosClass
from headrace.scheduler.policy.commands import Displacement
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.ledger import Ledger, need_of

VICTIMS = (QosClass.BATCH, QosClass.NORMAL)


def make_room(request: Request, ledger: Ledger) -> tuple[Displacement, ...] | None:
    """The displacements that give the request its slots and blocks, None if no lawful ones do.

    Slots come from running requests, which keep their KV while there is memory. Where memory is short too, those that
    pause already lose theirs first, the last to have come first, then those that are displaced now.
    """
    need = need_of(request, ledger.shape.block_tokens)
    slots = need.num_slots - (ledger.shape.num_slots - ledger.num_slots)
    blocks = need.num_blocks - (ledger.shape.num_blocks - ledger.num_blocks)
    chosen: dict[str, bool] = {}
    for qos_class in VICTIMS:
        if slots <= 0:
            break
        for request_id, held in ledger.displaceable(qos_class):
            if slots <= 0:
                break
            chosen[request_id] = False
            slots -= held.need.num_slots
    if slots > 0:
        return None
    if blocks > 0:
        for request_id, held in reversed(ledger.paused.items()):
            if blocks > 0 and held.request is not None and held.request.qos_class in VICTIMS and held.held.num_blocks:
                chosen[request_id] = True
                blocks -= held.held.num_blocks
        for request_id in list(chosen):
            if blocks > 0 and not chosen[request_id]:
                chosen[request_id] = True
                blocks -= ledger.reservations[request_id].need.num_blocks
        for qos_class in VICTIMS:
            for request_id, held in ledger.displaceable(qos_class):
                if blocks > 0 and request_id not in chosen:
                    chosen[request_id] = True
                    slots -= held.need.num_slots
                    blocks -= held.need.num_blocks
    if blocks > 0:
        return None
    for request_id in reversed(list(chosen)):  # a small one may have been taken before one that suffices alone
        held = ledger.reservations[request_id]
        freed = held.held.num_blocks if chosen[request_id] else 0
        if slots + held.held.num_slots <= 0 and blocks + freed <= 0:
            del chosen[request_id]
            slots, blocks = slots + held.held.num_slots, blocks + freed
        elif chosen[request_id] and not held.paused and blocks + freed <= 0:
            chosen[request_id] = False
            blocks += freed
    return tuple(Displacement(request_id, drop_kv) for request_id, drop_kv in chosen.items())
