"""A closed loop: a fixed number of streams, each sending its next request as soon as its last one has ended.

Standard library only: peer drivers run it inside their own environments, so every system is measured by this code.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Stream = Callable[[Sequence[int], int], AsyncIterator[int]]
"""Sends prompt token ids with a number of tokens to generate; yields how many tokens each piece brought."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer: `ttft_s` and `total_s` since it was asked, `num_tokens` received."""

    ttft_s: float
    total_s: float
    num_tokens: int


@dataclass(slots=True)
class Window:
    """What arrived in one measured window of `window_s`: tokens from whichever request, and answers ended in it."""

    window_s: float
    num_tokens: int = 0
    replies: list[Reply] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.window_s


class PromptsExhausted(RuntimeError):
    """The loop ran out of fresh prompts: a prompt sent twice would let a prefix cache answer it."""


async def closed_loop(
    stream: Stream,
    prompts: Iterable[Sequence[int]],
    *,
    num_streams: int,
    max_tokens: int,
    warm_s: float,
    window_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Window:
    """Keeps `num_streams` streams busy, counts what arrives within the window after `warm_s`, then lets them end.

    First requests have staggered lengths, so that the streams do not prefill and decode in lock-step.
    Raises PromptsExhausted, and whatever `stream` raises (as an ExceptionGroup).
    """
    window, fresh = Window(window_s), iter(prompts)
    opens = clock() + warm_s
    closes = opens + window_s

    async def keep_busy(index: int) -> None:
        num_tokens = 1 + index * max_tokens // num_streams
        while clock() < closes:
            await _send(stream, _next(fresh), num_tokens, window, opens, closes, clock)
            num_tokens = max_tokens

    async with asyncio.TaskGroup() as group:
        for index in range(num_streams):
            group.create_task(keep_busy(index))
    return window


async def one_by_one(
    stream: Stream,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Reply]:
    """Sends the prompts one after the other, each alone."""
    window = Window(0.0)
    for prompt in prompts:
        await _send(stream, prompt, max_tokens, window, float("-inf"), float("inf"), clock)
    return window.replies


def _next(fresh: Iterator[Sequence[int]]) -> Sequence[int]:
    try:
        return next(fresh)
    except StopIteration:
        raise PromptsExhausted("the prompts ran out before the window closed: make more of them") from None


async def _send(
    stream: Stream,
    prompt: Sequence[int],
    max_tokens: int,
    window: Window,
    opens: float,
    closes: float,
    clock: Callable[[], float],
) -> None:
    asked = clock()
    first, total = 0.0, 0
    async for num_tokens in stream(prompt, max_tokens):
        now = clock()
        if num_tokens and not total:
            first = now
        total += num_tokens
        if opens <= now < closes:
            window.num_tokens += num_tokens
    ended = clock()
    if total != max_tokens:
        raise RuntimeError(f"an answer has {total} tokens where {max_tokens} were asked for")
    if opens <= ended < closes:
        window.replies.append(Reply(first - asked, ended - asked, total))


def median_ttft_s(replies: Sequence[Reply]) -> float:
    """Median time to first token; NaN without replies."""
    return statistics.median(reply.ttft_s for reply in replies) if replies else float("nan")


def stream_tokens_per_s(replies: Sequence[Reply]) -> float:
    """Tokens a second of one stream, prefill included: all tokens over all time; NaN without replies."""
    total_s = sum(reply.total_s for reply in replies)
    return sum(reply.num_tokens for reply in replies) / total_s if total_s else float("nan")
