"""The decision core: one event in, commands out. The service, the simulator and the tests drive this one function."""

from itertools import zip_longest

from headrace.core.errors import DeadlineMissed, Draining, InvalidRequest, NoExecutor
from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.admission import check_room, check_sane, check_servable
from headrace.scheduler.policy.commands import Command, Dismiss, Refusal, Refuse, Renew, Resume
from headrace.scheduler.policy.events import (
    Configured,
    Drain,
    Event,
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    GatewayLost,
    Gathered,
    LoadedModel,
    Occurrence,
    Request,
    Submitted,
    Tick,
    Withdrawn,
)
from headrace.scheduler.policy.flights import land
from headrace.scheduler.policy.ledger import need_of
from headrace.scheduler.policy.lengths import lengths_of
from headrace.scheduler.policy.registry import Executor
from headrace.scheduler.policy.state import State
from headrace.scheduler.policy.turn import Turn

_LEAVING = Refusal(Draining, "the scheduler is leaving: submit again")


def step(state: State, event: Event, now: float) -> list[Command]:
    """Takes the event in, then what has become due, then dispatches. `now` in seconds of a monotonic clock.

    Never raises: whatever makes no sense becomes a refusal or nothing. A clock that steps back stands still instead.
    """
    if now > state.now:
        state.now = now
    turn = Turn(state)
    _await_executors(turn)
    for occurrence in event.occurrences if isinstance(event, Gathered) else (event,):
        _take_in(turn, occurrence)
    _expire(turn)
    return turn.dispatch()


def _await_executors(turn: Turn) -> None:
    """After its start the scheduler gives executors, who may run for an earlier life of it, time to enlist."""
    state = turn.state
    if not state.begun:
        state.begun = True
        if state.limits.grace_s > 0:
            state.grace_ends = state.now + state.limits.grace_s
    elif state.grace_ends is not None and state.now >= state.grace_ends:
        state.grace_ends = None
        turn.members_changed()


def _take_in(turn: Turn, event: Occurrence) -> None:
    match event:
        case Submitted(request):
            _submit(turn, request)
        case Withdrawn():
            _withdraw(turn, event)
        case GatewayLost(gateway_id):
            for waiting in turn.state.queues.of_gateway(gateway_id):
                turn.drop(waiting)
        case ExecutorEnlisted():
            _enlist(turn, event)
        case ExecutorReported():
            _report(turn, event)
        case ExecutorLost(executor_id):
            if executor := turn.state.registry.executors.get(executor_id):
                _lose(turn, executor)
        case Configured(limits):
            before, turn.state.limits = turn.state.limits, limits
            if (limits.order, limits.precision_rules) != (before.order, before.precision_rules):
                turn.reorder(limits.order)
            turn.members_changed()
        case Drain():
            turn.state.draining = True
            for waiting in list(turn.state.queues.by_id.values()):
                turn.refuse(waiting, _LEAVING)
        case Tick():
            turn.members_changed()  # whose turn it is changes with time too


def _submit(turn: Turn, request: Request) -> None:
    state = turn.state
    state.tally.submitted += 1
    _take_back(turn, request.gateway_id, request.request_id)
    if refusal := _objection(state, request):
        state.tally.refused += 1
        turn.commands.append(Refuse(request, refusal))
        return
    predictor = state.predictor
    output_tokens = predictor.output_tokens(request)
    predicted_s = predictor.service_s(request, output_tokens)
    urgent_at = None
    if request.deadline_s is not None:
        state.deadlines.set(request.request_id, state.now + request.deadline_s - predictor.least_s(request))
        urgent_at = state.now + request.deadline_s - 2 * predicted_s
    cost = request.prompt_tokens + request.n * output_tokens
    lane, waiting, may_be_first = state.queues.push(
        request, state.now, cost=cost, predicted_s=predicted_s, urgent_at=urgent_at, wish=state.wish_of(request)
    )
    if may_be_first:
        turn.pushed(lane, waiting)
    if state.lengths and (found := state.registry.pool(*lane.key)) and found[1].padded:
        lengths = lengths_of(state.lengths, request.model, *found, state.limits.buckets)
        lengths.arrived(request.prompt_tokens, state.now)
        turn.look_at(lane)


def _objection(state: State, request: Request) -> Refusal | None:
    if state.draining:
        return _LEAVING
    if request.request_id in state.queues.by_id or request.request_id in state.active:
        return Refusal(InvalidRequest, "a request of this id is waiting or running", field="request_id", limit="unique")
    if request.deadline_s is not None and not request.deadline_s > 0:
        return _deadline_missed()
    return (
        check_sane(request)
        or _unservable(state, request)
        or _out_of_reach(state, request)
        or check_room(
            request,
            state.queues.backlog[request.qos_class],
            state.limits.bounds,
            state.rates[request.qos_class],
            state.now,
        )
    )


def _unservable(state: State, request: Request) -> Refusal | None:
    refusal = check_servable(request, state.registry)
    return None if refusal and refusal.kind is NoExecutor and state.grace_ends is not None else refusal


def _out_of_reach(state: State, request: Request) -> Refusal | None:
    if request.deadline_s is None:
        return None
    least_s = state.predictor.least_s(request)
    if request.deadline_s >= least_s:
        return None
    message = f"the deadline is {request.deadline_s:.3g} s away, the answer takes {least_s:.3g} s at the least"
    return Refusal(DeadlineMissed, message, field="deadline", limit=f">= {least_s:.3g} s")


def _withdraw(turn: Turn, event: Withdrawn) -> None:
    waiting = turn.state.queues.by_id.get(event.request_id)
    if waiting is None:
        _take_back(turn, event.gateway_id, event.request_id)
    elif waiting.request.gateway_id == event.gateway_id:
        turn.drop(waiting)


def _take_back(turn: Turn, gateway_id: str, request_id: str) -> None:
    """Voids a placement of the gateway's that has not started: by withdrawing the request, or by submitting it again
    on a new stream, the gateway says that it has not seen the placement and will not use it."""
    for executor_id in turn.state.active.get(request_id, ()):
        executor = turn.state.registry.executors[executor_id]
        held = executor.ledger.reservations[request_id]
        if held.request is not None and held.request.gateway_id == gateway_id and not held.started:
            _release(turn, executor, request_id)
            turn.state.tally.withdrawn += 1


def _enlist(turn: Turn, event: ExecutorEnlisted) -> None:
    state = turn.state
    kept = {}
    if known := state.registry.executors.get(event.executor_id):
        running = set(event.running_ids)
        for request_id, held in list(known.ledger.reservations.items()):
            if held.request is not None and (request_id in running or not held.started):
                kept[request_id] = held
            else:
                _finish(turn, known, request_id)
        state.registry.remove(known)
    paddings = [(each.padding.batch_rows, each.padding.align_tokens) for each in event.models if each.padding]
    contexts = [each.context_tokens for each in event.models]
    least = min(event.num_slots, event.num_blocks, event.block_tokens, *contexts, *sum(paddings, ()))
    if not (event.executor_id and least > 0):
        for request_id in kept:
            state.forget(request_id, event.executor_id)
            state.tally.lost += 1
        state.leases.cancel(event.executor_id)
        turn.members_changed()
        limit = "an id; num_slots, num_blocks, block_tokens, contexts and what padding is made of above 0"
        turn.commands.append(
            Dismiss(event.executor_id, Refusal(InvalidRequest, "no capacity", field="enlistment", limit=limit))
        )
        return
    state.prefixes.forget(event.executor_id)  # it tells anew what it has
    first = event.models[0] if event.models else LoadedModel("", Precision.ANY, 0)
    steps = state.predictor.steps_of((first.name, first.precision, event.architecture))
    executor = state.registry.enlist(event, steps)
    executor.flights = known.flights if known else []
    for request_id, held in kept.items():
        if held.request is not None:
            held.need = need_of(held.request, event.block_tokens)  # it may have come back with another shape
        executor.ledger.reserve(request_id, held)
    land(executor, state.now)
    paused = set(event.paused_ids)
    for request_id in event.running_ids:
        _start(turn, executor, request_id, paused=request_id in paused)
        _agree(turn, executor, request_id, paused=request_id in paused)
    state.registry.update(executor)
    turn.freed(executor)
    turn.members_changed()
    _renew(turn, executor)


def _report(turn: Turn, event: ExecutorReported) -> None:
    state = turn.state
    executor = state.registry.executors.get(event.executor_id)
    if executor is None:
        turn.commands.append(Dismiss(event.executor_id, Refusal(NoExecutor, "the lease has ended: enlist again")))
        return
    for request_id in event.started_ids:
        _start(turn, executor, request_id)
    if event.finished_ids:
        for request_id, tokens in zip_longest(event.finished_ids, event.output_tokens[: len(event.finished_ids)]):
            held = executor.ledger.reservations.get(request_id)
            if held is not None and held.request is not None and tokens is not None:
                state.predictor.observe_answer(held.request, tokens)
            _finish(turn, executor, request_id)
    if event.added_prefixes or event.removed_prefixes:
        state.prefixes.remove(executor.executor_id, event.removed_prefixes)
        state.prefixes.add(executor.executor_id, event.added_prefixes)
    if event.steps:
        executor.steps.observe(event.steps)
    if executor.ledger.resumed:
        executor.ledger.confirm(event.paused_ids)
        state.registry.update_victims(executor)
    for request_id in event.paused_ids:
        _wake(turn, executor, request_id)
    if event.draining != executor.draining:
        state.registry.set_draining(executor, event.draining)
        turn.members_changed()
    ledger = executor.ledger
    realtime_waits = state.queues.backlog[QosClass.REALTIME].num_requests > 0
    if ledger.num_slots < ledger.shape.num_slots or (realtime_waits and executor.has_victims):
        turn.freed(executor)
    _renew(turn, executor)


def _renew(turn: Turn, executor: Executor) -> None:
    lease_s = turn.state.limits.lease_s
    turn.state.leases.set(executor.executor_id, turn.state.now + lease_s)
    turn.commands.append(Renew(executor.executor_id, lease_s))


def _start(turn: Turn, executor: Executor, request_id: str, *, paused: bool = False) -> None:
    """A request runs. One not placed here came from an earlier life, or started after it had been given up."""
    ledger = executor.ledger
    if request_id not in ledger.reservations:
        ledger.reserve_unknown(request_id, paused=paused)
        turn.state.hold(request_id, executor.executor_id)
        turn.state.registry.update(executor)
    elif not ledger.reservations[request_id].started:
        ledger.start(request_id)
        turn.state.starts.cancel((executor.executor_id, request_id))
        turn.state.registry.update_victims(executor)


def _agree(turn: Turn, executor: Executor, request_id: str, *, paused: bool) -> None:
    """An executor that was alone has displaced and resumed as it saw fit: its word counts."""
    ledger = executor.ledger
    held = ledger.reservations[request_id]
    if paused and not held.paused:
        ledger.pause(request_id, drop_kv=False)
    elif held.paused and not paused:
        ledger.resume(request_id)


def _wake(turn: Turn, executor: Executor, request_id: str) -> None:
    """One that is displaced there and not here was so by a start that came late; it may go on.

    One just told so is told again once two reports name it: the first may have crossed the word.
    """
    held = executor.ledger.reservations.get(request_id)
    if held is None or held.paused or not held.started:
        return  # one that is named before it has started is nonsense
    if request_id in executor.ledger.resumed and not held.named:
        held.named = True
    else:
        executor.ledger.doubt(request_id)
        turn.state.registry.update_victims(executor)
        turn.commands.append(Resume(executor.executor_id, (request_id,)))


def _finish(turn: Turn, executor: Executor, request_id: str) -> None:
    if _release(turn, executor, request_id):
        turn.state.tally.finished += 1


def _release(turn: Turn, executor: Executor, request_id: str) -> bool:
    """Gives its capacity back; True for a request that was placed here."""
    held = executor.ledger.release(request_id)
    if held is None:
        return False
    turn.state.forget(request_id, executor.executor_id)
    if executor.flights:
        land(executor, turn.state.now)
    turn.state.registry.update(executor)
    turn.freed(executor)
    return held.request is not None


def _lose(turn: Turn, executor: Executor) -> None:
    """Its requests vanish with it: their gateways see their own streams break."""
    state = turn.state
    state.prefixes.forget(executor.executor_id)
    for request_id in list(executor.ledger.reservations):
        if _release(turn, executor, request_id):
            state.tally.lost += 1
    state.registry.remove(executor)
    state.leases.cancel(executor.executor_id)
    turn.members_changed()


def _expire(turn: Turn) -> None:
    state = turn.state
    for executor_id in state.leases.pop_due(state.now):
        _lose(turn, state.registry.executors[executor_id])
        turn.commands.append(Dismiss(executor_id, Refusal(NoExecutor, "the lease has ended: enlist again")))
    for executor_id, request_id in state.starts.pop_due(state.now):
        _release(turn, state.registry.executors[executor_id], request_id)
        state.tally.unstarted += 1
    for key in state.windows.pop_due(state.now):
        if lane := state.queues.lane(key):
            turn.look_at(lane)
    for request_id in state.deadlines.pop_due(state.now):
        turn.refuse(state.queues.by_id[request_id], _deadline_missed())


def _deadline_missed() -> Refusal:
    return Refusal(DeadlineMissed, "the deadline passed before dispatch", limit="before dispatch")
