"""The closed loop against a target in virtual time: what is counted, when, and how often."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from headrace.benchmarks.closed_loop import (
    PromptsExhausted,
    Reply,
    closed_loop,
    median_ttft_s,
    one_by_one,
    stream_tokens_per_s,
)


class Target:
    """Answers one token every `pace_s` of a time that only its own waiting moves."""

    def __init__(self, pace_s: float = 1.0, short_by: int = 0) -> None:
        self.pace_s, self.short_by = pace_s, short_by
        self.running = self.most_running = 0
        self.seen: list[tuple[int, ...]] = []
        self._now = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def clock(self) -> float:
        return self._now

    async def advance(self) -> None:
        """Moves time on to the next sleeper whenever everybody sleeps."""
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers:
                self._now = min(at for at, _ in self._sleepers)
                due = [event for at, event in self._sleepers if at <= self._now]
                self._sleepers = [(at, event) for at, event in self._sleepers if at > self._now]
                for event in due:
                    event.set()

    async def stream(self, prompt: Sequence[int], max_tokens: int) -> AsyncIterator[int]:
        self.seen.append(tuple(prompt))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        for _ in range(max_tokens - self.short_by):
            event = asyncio.Event()
            self._sleepers.append((self._now + self.pace_s, event))
            await event.wait()
            yield 1
        self.running -= 1


async def test_counts_what_arrives_in_the_window_and_keeps_all_streams_busy() -> None:
    target = Target()
    time = asyncio.create_task(target.advance())
    prompts = [[index] for index in range(1000)]
    window = await closed_loop(
        target.stream, prompts, num_streams=4, max_tokens=8, warm_s=10.5, window_s=40, clock=target.clock
    )
    time.cancel()
    assert window.num_tokens == 4 * 40  # a token a second and stream, at whole seconds
    assert window.tokens_per_s == 4
    assert target.most_running == 4
    assert target.running == 0, "requests running at the window's end are let to end"
    assert len(set(target.seen)) == len(target.seen), "no prompt is sent twice"
    assert {reply.num_tokens for reply in window.replies} == {8}, "staggered first requests end in the warm-up"
    assert {reply.ttft_s for reply in window.replies} == {1.0}
    assert {reply.total_s for reply in window.replies} == {8.0}


async def test_streams_start_out_of_step() -> None:
    target = Target()
    time = asyncio.create_task(target.advance())
    ends: list[float] = []
    window = await closed_loop(
        target.stream,
        [[index] for index in range(500)],
        num_streams=4,
        max_tokens=8,
        warm_s=0,
        window_s=9,
        clock=target.clock,
    )
    ends = sorted(reply.num_tokens for reply in window.replies)
    time.cancel()
    assert ends[:4] == [1, 3, 5, 7]


async def test_prompts_that_run_out_are_an_error() -> None:
    target = Target()
    time = asyncio.create_task(target.advance())
    with pytest.raises(ExceptionGroup) as raised:
        await closed_loop(
            target.stream, [[1], [2]], num_streams=2, max_tokens=2, warm_s=0, window_s=50, clock=target.clock
        )
    time.cancel()
    assert raised.group_contains(PromptsExhausted)


async def test_an_answer_cut_short_is_an_error() -> None:
    target = Target(short_by=1)
    time = asyncio.create_task(target.advance())
    with pytest.raises(RuntimeError, match="3 tokens where 4"):
        await one_by_one(target.stream, [[1]], 4, clock=target.clock)
    time.cancel()


async def test_one_by_one_sends_each_alone() -> None:
    target = Target(pace_s=0.5)
    time = asyncio.create_task(target.advance())
    replies = await one_by_one(target.stream, [[1], [2], [3]], 4, clock=target.clock)
    time.cancel()
    assert replies == [Reply(0.5, 2.0, 4)] * 3
    assert target.most_running == 1
    assert stream_tokens_per_s(replies) == 2.0
    assert median_ttft_s(replies) == 0.5
