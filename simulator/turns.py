"""The scheduler's loop in virtual time: what is received at one instant is one turn, and due times bring ticks."""

from collections.abc import Callable
from functools import partial

from headrace.scheduler.policy.commands import Command
from headrace.scheduler.policy.events import Event, Gathered, Occurrence, Tick
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State
from headrace.simulator.clock import Clock, Phase

LONGEST_PAUSE_S = 1.0


class Turns:
    """Owns the state. `carry_out` gets every command, in order."""

    def __init__(self, clock: Clock, state: State, carry_out: Callable[[Command], None]) -> None:
        self.num_turns = 0
        self._clock = clock
        self._state = state
        self._carry_out = carry_out
        self._gathered: list[Occurrence] = []
        self._turn_planned = False
        self._tick_at = float("inf")
        self._tick_wanted = LONGEST_PAUSE_S

    def receive(self, occurrence: Occurrence) -> None:
        """To be taken in now, with all else that is received at this instant."""
        self._gathered.append(occurrence)
        if not self._turn_planned:
            self._turn_planned = True
            self._clock.after(0.0, self._take_turn, Phase.TURN)

    def _take_turn(self) -> None:
        self._turn_planned = False
        taken, self._gathered = self._gathered, []
        self._step(taken[0] if len(taken) == 1 else Gathered(tuple(taken)))

    def _step(self, event: Event) -> None:
        now = self._clock.now
        self.num_turns += 1
        for command in step(self._state, event, now):
            self._carry_out(command)
        due = self._state.next_due()
        # what is due now has been taken in; a due time that stays would else stop the clock
        self._tick_wanted = now + (LONGEST_PAUSE_S if due is None else min(max(due - now, 1e-6), LONGEST_PAUSE_S))
        if self._tick_wanted < self._tick_at:
            self._plan_tick()

    def _plan_tick(self) -> None:
        self._tick_at = at = self._tick_wanted
        self._clock.at(at, partial(self._tick, at), Phase.TURN)

    def _tick(self, at: float) -> None:
        """Time alone may change something. One that has been moved to a later time goes there."""
        if at != self._tick_at:
            return
        self._tick_at = float("inf")
        if self._tick_wanted > self._clock.now:
            self._plan_tick()
        elif not self._turn_planned:  # else the turn has the same effect
            self._step(Tick())
