"""A request's way from executor to executor: placed, run and, where the executor is lost, placed again.

It goes on by itself, whether or not the caller reads. What is known of the answer is the relay's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.core.errors import Draining, EngineFault, HeadraceError, NoExecutor
from headrace.gateway.executor_link import ExecutorPool
from headrace.gateway.generation import Placement
from headrace.gateway.relay import Relay
from headrace.gateway.scheduler_link import SchedulerLink

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
"""Before the request is submitted again: the scheduler too must hear that the executor is gone."""


@contextmanager
def attempts(
    relay: Relay,
    scheduler: SchedulerLink,
    executors: ExecutorPool,
    placed: Callable[[Placement], None],
    lost: Callable[[HeadraceError], None],
) -> Iterator[None]:
    """Runs the request until its relay has ended or the block has. `placed` is told of each placement, `lost` of each
    loss that the request survives."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            log.error("request %s broke off", relay.generation.request_id, exc_info=error)
            relay.fail(EngineFault("internal error"))

    task = asyncio.create_task(_attempts(relay, scheduler, executors, placed, lost))
    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()


async def _attempts(
    relay: Relay,
    scheduler: SchedulerLink,
    executors: ExecutorPool,
    placed: Callable[[Placement], None],
    lost: Callable[[HeadraceError], None],
) -> None:
    pause_s = FIRST_PAUSE_S
    while not relay.ended:
        try:
            placement = await scheduler.placement(relay)
        except HeadraceError as error:
            if not may_change(error, executors, relay.generation.model.name):
                relay.fail(error)
        else:
            with executors.link(placement.address).running(relay, placement):
                placed(placement)
                await relay.left()
            if not relay.ended and relay.lost_by is not None:
                lost(relay.lost_by)
        if not relay.ended:
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 4)


def may_change(refusal: HeadraceError, executors: ExecutorPool, model: str) -> bool:
    """The next scheduler may take it, or an executor that has just been lost may come back."""
    return isinstance(refusal, Draining) or (isinstance(refusal, NoExecutor) and executors.may_return(model))
