"""Looks at answers while they are made, a window of their text at a time, and refuses or marks what is found.

The check is somebody else's: a package offers it by an entry point of the group `headrace.output_checks`, a function of
the models' repository and the number of threads that will call it at once. Off by default.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol

from headrace.chassis import plugins
from headrace.chassis.config import OutputCheckSettings
from headrace.core.errors import ScreenRejected, Unavailable
from headrace.core.screening import ScreenPolicy, Verdict, worst
from headrace.gateway.checked import Checked, Outcome
from headrace.gateway.generation import Known, Piece
from headrace.models.repository import Repository

log = logging.getLogger(__name__)

GROUP = "headrace.output_checks"
Told = Callable[[Checked], None]


class OutputCheck(Protocol):
    """Called from several threads at once. A verdict must depend on its window only."""

    def judge(self, windows: Sequence[str]) -> list[Verdict]:
        """One verdict a window, in order."""


class OutputChecks:
    """The configured check and its threads; None of it where the policy is off."""

    def __init__(self, settings: OutputCheckSettings, check: OutputCheck | None, pool: ThreadPoolExecutor) -> None:
        self._settings = settings
        self._check = check
        self._pool = pool

    def watch(self, n: int, longest_stop: int, known: Known | None, told: Told) -> "OutputWatch | None":
        """For a request of `n` answers, of which `known` has left already; `longest_stop` characters may be held back
        as the beginning of a stop string. `told` hears of each run of the check."""
        if self._check is None:
            return None
        return OutputWatch(self, self._settings, n, longest_stop, known, told)

    async def judged(self, windows: Sequence[str], told: Told) -> list[Verdict]:
        """Raises Unavailable where there is no verdict in time and that is not let pass."""
        check, settings = self._check, self._settings
        if check is None or not windows:
            return []
        verdicts: list[Verdict] = []
        outcome, began = Outcome.LATE, time.perf_counter()
        try:
            async with asyncio.timeout(settings.budget_ms / 1000):
                verdicts = await asyncio.get_running_loop().run_in_executor(self._pool, check.judge, windows)
            outcome = Outcome.FOUND if any(verdict.category for verdict in verdicts) else Outcome.PASS
        except TimeoutError:
            pass
        except Exception:  # the check is a program of somebody else's: without a verdict the settings decide
            log.exception("the output check failed")
            outcome = Outcome.FAILED
        worst_verdict = worst(verdicts) if verdicts else None
        told(Checked(settings.policy, outcome, worst_verdict, len(windows), time.perf_counter() - began))
        if outcome in (Outcome.PASS, Outcome.FOUND):
            return verdicts
        if settings.policy is ScreenPolicy.BLOCK and settings.on_timeout == "closed":
            raise Unavailable("the answer could not be checked in time")
        return []


class _Text:
    """One answer's text, of which all windows that begin before `checked` have been judged."""

    def __init__(self, text: str, checked: int) -> None:
        self.text = text
        self.checked: float = checked

    def due(self, window: int, stride: int, ended: bool) -> list[str]:
        """The windows that are full, at the end of the answer also the last one."""
        windows: list[str] = []
        while self.checked + window <= len(self.text):
            start = int(self.checked)
            windows.append(self.text[start : start + window])
            self.checked += stride
        if ended:
            if self.checked < len(self.text):
                windows.append(self.text[int(self.checked) :])
            self.checked = math.inf
        return windows


class OutputWatch:
    """One request's answers. To BLOCK, a piece is held until every window that has a character of it has passed."""

    def __init__(
        self,
        checks: OutputChecks,
        settings: OutputCheckSettings,
        n: int,
        longest_stop: int,
        known: Known | None,
        told: Told,
    ) -> None:
        self._checks = checks
        self._told = told
        self._blocks = settings.policy is ScreenPolicy.BLOCK
        self._window, self._stride = settings.window_chars, settings.stride_chars
        self._reach = 1 + longest_stop  # a piece's tokens may go on in text to come: in a character, or a stop string
        self._held: deque[tuple[Piece, int]] = deque()
        self._found: list[Verdict] = []
        left = known.text if known is not None else ("",) * n
        # what has left was judged before it did, but not beside what comes now
        self._texts = [_Text(text, self._overlapping(len(text)) if self._blocks else 0) for text in left]

    def _overlapping(self, length: int) -> int:
        """Where the first window begins that may go on beyond so much text."""
        return max(0, length - self._window) // self._stride * self._stride

    @property
    def finding(self) -> Verdict | None:
        """The worst of what was found so far and let pass."""
        return worst(self._found) if self._found else None

    async def passed(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What may leave now, in order. Raises ScreenRejected, Unavailable."""
        windows: list[str] = []
        for piece in pieces:
            text = self._texts[piece.index]
            text.text += piece.text
            self._held.append((piece, len(text.text)))
            windows += text.due(self._window, self._stride, bool(piece.finish))
        found = [verdict for verdict in await self._checks.judged(windows, self._told) if verdict.category]
        if found and self._blocks:
            verdict = worst(found)
            raise ScreenRejected(
                f"the output check refused the answer: {verdict.category}", field="answer", category=verdict.category
            )
        self._found += found
        return list(self._free())

    def _free(self) -> Iterator[Piece]:
        while self._held:
            piece, end = self._held[0]
            if self._blocks and end + self._reach > self._texts[piece.index].checked:
                return
            self._held.popleft()
            yield piece


@asynccontextmanager
async def open_output_checks(settings: OutputCheckSettings, repository: Repository) -> AsyncIterator[OutputChecks]:
    """The check that the settings name, with its threads. Raises ConfigError for a name that nobody offers."""
    check: OutputCheck | None = None
    if settings.policy is not ScreenPolicy.OFF:
        load = plugins.load(GROUP, settings.check, "screen.output.check")
        check = await asyncio.to_thread(load, repository, settings.threads)
    pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="output-check")
    try:
        yield OutputChecks(settings, check, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
