"""The owner: one task takes events in, steps the policy and hands commands on. Nobody else touches the state."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

from headrace.scheduler.policy.commands import Command
from headrace.scheduler.policy.events import Configured, Event, Gathered, Occurrence, Tick
from headrace.scheduler.policy.limits import Limits, changed
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State

MAX_GATHERED = 1024
LONGEST_PAUSE_S = 1.0


class SchedulerLoop:
    """`carry_out` gets every command, in order. `clock` is monotonic, in seconds."""

    def __init__(
        self, state: State, carry_out: Callable[[Command], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._carry_out = carry_out
        self._clock = clock
        self._events: deque[Occurrence] = deque()
        self._wake = asyncio.Event()
        self.busy_s = 0.0  # spent deciding, since the start

    def post(self, event: Occurrence) -> None:
        """To be taken in at the next turn of the event loop, with all else that has gathered by then."""
        self._events.append(event)
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._pause()
            self.take_turn()
            await asyncio.sleep(0)  # a flood of events must leave the streams their turns

    def take_turn(self) -> None:
        """One step: all that has gathered is taken in before anything is dispatched."""
        began = time.perf_counter()
        taken = [self._events.popleft() for _ in range(min(len(self._events), MAX_GATHERED))]
        event: Event = taken[0] if len(taken) == 1 else Gathered(tuple(taken)) if taken else Tick()
        for command in step(self._state, event, self._clock()):
            self._carry_out(command)
        self.busy_s += time.perf_counter() - began

    def now(self) -> float:
        """On the clock that the state's times are on."""
        return self._clock()

    def settle(self) -> None:
        """Takes turns until nothing is left to take in."""
        while self._events:
            self.take_turn()

    def observed(self) -> State:
        """The state with all that has come taken in: to be read only, and not across an await."""
        self.settle()
        return self._state

    def configure(self, changes: Mapping[str, str]) -> tuple[Limits, Limits]:
        """Puts changed settings into effect; the limits before and after. Raises InvalidRequest, changing nothing.

        The new limits are derived from those in effect and are in effect on return, with no await between: of two
        who change different settings at once, neither undoes the other's change.
        """
        before = self.observed().limits
        self.post(Configured(changed(before, changes)))
        return before, self.observed().limits

    async def _pause(self) -> None:
        """Until something comes, or time alone changes something."""
        if not self._events:
            self._wake.clear()
            due = self._state.next_due()
            pause_s = LONGEST_PAUSE_S if due is None else min(max(due - self._clock(), 0.0), LONGEST_PAUSE_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
