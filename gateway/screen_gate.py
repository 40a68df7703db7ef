"""Holds a request's tokens until its prompt is judged; refuses it, or marks it, as its tenant's policy says.

The screen itself runs elsewhere, beside queueing and prefill: mostly its verdict is there before the first token.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from opentelemetry.context import Context

from headrace.chassis.config import ScreenSettings
from headrace.core.errors import ConfigError, HeadraceError, ScreenRejected, Unavailable
from headrace.core.screening import ScreenPolicy, Verdict
from headrace.gateway.generation import Wish
from headrace.gateway.ports import TextModels
from headrace.gateway.relay import Relay, deadline_missed
from headrace.gateway.request_span import RequestSpan

log = logging.getLogger(__name__)


class Screener(Protocol):
    """Judges texts; inline or over the preprocess service."""

    async def screen(self, request_id: str, texts: Sequence[str], parent: Context) -> Verdict:
        """The verdict on the worst of the texts. Records span preprocess.screen under `parent`."""


class Screening:
    """One request's verdict, being made. Without a task the request is not screened."""

    def __init__(self, policy: ScreenPolicy, task: "asyncio.Task[Verdict | None] | None", span: RequestSpan) -> None:
        self._policy = policy
        self._task = task
        self._span = span

    def guards(self, relay: Relay) -> None:
        """A refusal ends the relay at once, wherever the request stands: in the queue or at an executor."""

        def refuse(task: "asyncio.Task[Verdict | None]") -> None:
            if not task.cancelled() and isinstance(error := task.exception(), HeadraceError):
                relay.fail(error)

        if self._task is not None:
            self._task.add_done_callback(refuse)

    async def passed(self, deadline: float | None) -> None:
        """Returns once tokens may leave. Raises ScreenRejected, Unavailable (no verdict, closed), DeadlineMissed."""
        if self._task is None or self._policy is not ScreenPolicy.BLOCK:
            return
        if not self._task.done():
            began = time.perf_counter()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._task
            except TimeoutError:
                raise deadline_missed(0) from None
            self._span.held_by_screen(time.perf_counter() - began)
        self._task.result()

    async def finding(self) -> Verdict | None:
        """What was found in a prompt that was let pass; waits for the verdict."""
        verdict = await self._task if self._task is not None else None
        return verdict if verdict is not None and verdict.category else None


class ScreenGate:
    """Starts the screening of each request that its policy names. Raises ConfigError where there is no screener."""

    def __init__(self, settings: ScreenSettings, screener: Screener | None, texts: TextModels) -> None:
        if settings.used and screener is None:
            raise ConfigError("screen.policy asks for a screen, and the gateway was given none")
        self._settings = settings
        self._screener = screener
        self._texts = texts

    @contextmanager
    def screening(self, wish: Wish, tenant: str, span: RequestSpan) -> Iterator[Screening]:
        """Begins at once; what is not judged when the block ends is given up."""
        policy = self._settings.policy_for(tenant, wish.qos.name.lower())
        if self._screener is None or policy is ScreenPolicy.OFF:
            yield Screening(policy, None, span)
            return
        task = asyncio.create_task(self._judged(self._screener, wish, policy, span))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to ask
        try:
            yield Screening(policy, task, span)
        finally:
            task.cancel()

    async def _judged(self, screener: Screener, wish: Wish, policy: ScreenPolicy, span: RequestSpan) -> Verdict | None:
        """None where there is no verdict and that is let pass. Raises ScreenRejected, Unavailable."""
        verdict, began = None, time.perf_counter()
        try:
            async with asyncio.timeout(self._settings.budget_ms / 1000):
                verdict = await screener.screen(wish.request_id, user_texts(wish, self._texts), span.parent)
        except TimeoutError:
            pass
        except HeadraceError as error:
            log.warning("request %s has no verdict: %s", wish.request_id, error)
        except Exception:  # a screen is a program of somebody else's: without a verdict the policy decides
            log.exception("the screen failed on request %s", wish.request_id)
        span.screened(policy, verdict, time.perf_counter() - began)
        if policy is ScreenPolicy.BLOCK:
            if verdict is None and self._settings.on_timeout == "closed":
                raise Unavailable("the prompt could not be screened in time")
            if verdict is not None and verdict.category:
                raise ScreenRejected(
                    f"the screen refused the prompt: {verdict.category}", field="prompt", category=verdict.category
                )
        return verdict


def user_texts(wish: Wish, texts: TextModels) -> Sequence[str]:
    """What the user said: the text, a chat's user turns (all turns where none is the user's), or the tokens' text."""
    if isinstance(wish.prompt, str):
        return [wish.prompt]
    if isinstance(wish.prompt, tuple):
        said = [turn.content for turn in wish.prompt if turn.role == "user" and turn.content]
        return said or [turn.content for turn in wish.prompt if turn.content]
    stream = texts.text_stream(wish.model.name)
    return [stream.push(wish.prompt.tolist()) + stream.flush()]
