"""Where a request goes: the first executor, least loaded first, that has room for it. Plain functions.

A cache that has how the prompt begins counts against load, both in seconds: see `time_on`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.core.request import QosClass
from headrace.scheduler.policy.commands import WaitReason
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.ledger import Need, Shape, need_of
from headrace.scheduler.policy.registry import Executor

_MOST_LATE = 16
"""Of executors with room that will likely miss a deadline, so many are asked before the first of them is taken."""


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


def time_on(
    executor: Executor,
    request: Request,
    cached_tokens: int,
    output_tokens: float,
) -> float:
    """Seconds that differ between executors: computing what of the prompt is not cached, and how much longer each step
    of the answer takes: for itself and for those that run beside it.
    """
    base_s, decode_s, prefill_s = executor.steps.coefficients
    uncached = max(0, request.prompt_tokens - cached_tokens)
    return prefill_s * uncached + output_tokens * (base_s + decode_s * executor.ledger.num_slots)


def sooner_first(
    by_load: Iterable[Executor], cached_tokens: Mapping[Executor, int], seconds: Callable[[Executor, int], float]
) -> Iterator[Executor]:
    """The candidates as they come, but before the first those that have some of the prompt and are sooner through with
    the request, the soonest first. `seconds(executor, cached tokens)`."""
    rest = iter(by_load)
    first = next(rest, None)
    if first is None:
        return
    bar = seconds(first, cached_tokens.get(first, 0))
    times = [(seconds(executor, tokens), executor.number, executor) for executor, tokens in cached_tokens.items()]
    yield from (executor for time, _, executor in sorted(times, key=lambda each: each[:2]) if time < bar)
    yield first
    yield from rest


def place(
    request: Request,
    candidates: Iterable[Executor],
    owed: Callable[[Executor], bool],
    in_time: Callable[[Executor], bool] | None = None,
) -> tuple[Executor, Need] | Blocked:
    """The first executor with room, or why there is none.

    `candidates` come best first, have the model in the right precision, are members in good standing and do not drain;
    `owed` says that an executor's room belongs to an earlier request. Where displaced requests wait to go on, only
    REALTIME goes before them. `in_time` says that an executor will likely meet the request's deadline: the first that
    does is taken, else the first with room.
    """
    needs: dict[int, Need] = {}
    reason, yielding = WaitReason.SLOTS, False
    late: tuple[Executor, Need] | None = None
    num_late = 0
    total = request.prompt_tokens + request.max_output_tokens
    for executor in candidates:
        ledger = executor.ledger
        block_tokens = ledger.shape.block_tokens
        need = needs.get(block_tokens)
        if need is None:
            need = needs[block_tokens] = need_of(request, block_tokens)
        if not ledger.has_slots(need):
            continue
        if not ledger.has_blocks(need):
            reason = WaitReason.MEMORY
            continue
        if total > executor.context_of(request.model):
            continue
        if ledger.paused and request.qos_class is not QosClass.REALTIME:
            continue
        if request.request_id in ledger.reservations:
            continue  # it runs there from an earlier life of its own
        if owed(executor):
            yielding = True
            continue
        found = executor, need
        if in_time is None or in_time(executor):
            return found
        late = late or found
        num_late += 1
        if num_late == _MOST_LATE:
            break
    if late:
        return late
    return Blocked(WaitReason.QUEUE if yielding else reason, yielding)
