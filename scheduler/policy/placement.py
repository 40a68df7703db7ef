"""Where a request goes: filter, score in [0, 1], pick. Plain functions of executors and a request."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.scheduler.policy.commands import WaitReason
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.ledger import Need, Shape, need_of
from headrace.scheduler.policy.registry import Executor


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nobody has room now: what was missing, and whether an earlier request is owed what there is."""

    wait_reason: WaitReason
    yielding: bool


def fits(shape: Shape, context_tokens: int, request: Request) -> bool:
    """Filter: the executor could serve the request if it had nothing else to do."""
    if request.n > shape.num_slots or request.prompt_tokens + request.max_output_tokens > context_tokens:
        return False
    return need_of(request, shape.block_tokens).num_blocks <= shape.num_blocks


def score(executor: Executor) -> float:
    """The least loaded is best: 1 idle, 0 full."""
    return max(0.0, 1.0 - executor.ledger.load)


def place(
    request: Request, candidates: Iterable[Executor], owed: Callable[[Executor], bool]
) -> tuple[Executor, Need] | Blocked:
    """The best executor with room, or why there is none. Equal scores: the first.

    `candidates` have the model in the right precision, are members in good standing and do not drain; `owed` says that
    an executor's room belongs to an earlier request.
    """
    needs: dict[int, Need] = {}
    best: tuple[Executor, Need] | None = None
    best_score = -1.0
    reason, yielding = WaitReason.SLOTS, False
    for executor in candidates:
        ledger = executor.ledger
        need = needs.get(ledger.shape.block_tokens)
        if need is None:
            need = needs[ledger.shape.block_tokens] = need_of(request, ledger.shape.block_tokens)
        if not ledger.has_slots(need):
            continue
        if not ledger.has_blocks(need):
            reason = WaitReason.MEMORY
            continue
        candidate_score = score(executor)
        total = request.prompt_tokens + request.max_output_tokens
        if candidate_score <= best_score or total > executor.context_of(request.model):
            continue
        if owed(executor):
            yielding = True
            continue
        best, best_score = (executor, need), candidate_score
    if best is not None:
        return best
    return Blocked(WaitReason.QUEUE if yielding else reason, yielding)
