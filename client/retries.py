"""When a call is made again: refused for now, or nobody there, and nothing of the answer delivered yet.

It waits as long as the gateway says, else longer each time, never beyond the call's timeout, and with jitter, so that
clients refused together do not come back together. A client's budget keeps retries a small share of its calls.
"""

import random
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_any,
    stop_before_delay,
    wait_random_exponential,
)

from headrace.core.errors import Overloaded, Unavailable

Given = TypeVar("Given")

DEFAULT_RETRIES = 3
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 2.0
"""Without a word of the gateway's; what is waited is drawn between nothing and the bound, which doubles each time."""
JITTER_SHARE = 0.25
LEAST_JITTER_S = 0.05
"""On top of what the gateway says."""


class RetryBudget:
    """A bucket of retries: each call puts `share` of one in, each second `per_s`, up to `most`. Any thread's."""

    def __init__(
        self, share: float = 0.1, per_s: float = 3.0, most: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share, self._per_s, self._most, self._clock = share, per_s, most, clock
        self._left, self._at = most, clock()
        self._lock = threading.Lock()

    def called(self) -> None:
        with self._lock:
            self._left = min(self._most, self._left + self._share)

    def take(self) -> bool:
        """False where there is none left."""
        with self._lock:
            now = self._clock()
            self._left = min(self._most, self._left + (now - self._at) * self._per_s)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Retries:
    """Makes one client's calls, each up to `most` times more. A call is given the seconds it has left, or None."""

    def __init__(self, most: int, budget: RetryBudget | None = None) -> None:
        self._most = most
        self._budget = budget or RetryBudget()

    async def run(self, call: Callable[[float | None], Awaitable[Given]], timeout_s: float | None) -> Given:
        """Raises what the last try did."""
        if not self._most:
            return await call(timeout_s)
        left_s = self._began(timeout_s)

        async def once() -> Given:
            return await call(left_s())

        return await AsyncRetrying(**self._how(timeout_s))(once)

    def run_blocking(self, call: Callable[[float | None], Given], timeout_s: float | None) -> Given:
        """The same for a thread."""
        if not self._most:
            return call(timeout_s)
        left_s = self._began(timeout_s)
        return Retrying(**self._how(timeout_s))(lambda: call(left_s()))

    def _began(self, timeout_s: float | None) -> Callable[[], float | None]:
        self._budget.called()
        began = time.monotonic()
        return lambda: None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())

    def _how(self, timeout_s: float | None) -> dict[str, Any]:
        spent: Callable[[RetryCallState], bool] = stop_after_attempt(self._most + 1)
        if timeout_s is not None:
            spent = stop_any(stop_after_attempt(self._most + 1), stop_before_delay(timeout_s))
        return {
            "retry": retry_if_exception(may_retry),
            "wait": partial(_wait_s, wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)),
            "stop": lambda state: spent(state) or not self._budget.take(),  # takes for retries that are made only
            "reraise": True,
        }


def may_retry(error: BaseException) -> bool:
    """Refused with a word on when to come back, or nobody was there. A limit without one is no matter of time."""
    return isinstance(error, Unavailable) or (isinstance(error, Overloaded) and error.retry_after_s is not None)


def _wait_s(backoff: Callable[[RetryCallState], float], state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        return error.retry_after_s + random.uniform(0, max(LEAST_JITTER_S, error.retry_after_s * JITTER_SHARE))
    return backoff(state)
