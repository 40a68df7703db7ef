"""The open loop: requests come at their times, classes are told apart, what arrives after the window counts apart."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from headrace.benchmarks.open_loop import Arrival, open_loop, poisson_times, steady_rate


class Clock:
    """Time that moves when it is looked at, so that nothing here depends on the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


async def test_every_request_is_sent_with_its_class_and_counted() -> None:
    seen: list[tuple[int, int, str]] = []

    async def stream(prompt: Sequence[int], max_tokens: int, qos: str) -> AsyncIterator[int]:
        seen.append((len(prompt), max_tokens, qos))
        for _ in range(max_tokens):
            await asyncio.sleep(0)
            yield 1

    arrivals = [Arrival(0.0, [1, 2], 3, "realtime"), Arrival(0.0, [1], 2, "batch")]
    outcomes = await open_loop(stream, arrivals, 1e9, Clock())
    assert sorted(seen) == [(1, 2, "batch"), (2, 3, "realtime")]
    assert {(each.qos, each.num_tokens, each.window_tokens) for each in outcomes} == {
        ("realtime", 3, 3),
        ("batch", 2, 2),
    }
    assert all(0 < each.ttft_s < each.total_s < each.ended_s for each in outcomes)


async def test_tokens_after_the_window_are_not_in_it() -> None:
    async def stream(prompt: Sequence[int], max_tokens: int, qos: str) -> AsyncIterator[int]:
        for _ in range(max_tokens):
            yield 1

    (outcome,) = await open_loop(stream, [Arrival(0.0, [1], 9, "normal")], 6.0, Clock())
    assert 0 < outcome.window_tokens < outcome.num_tokens == 9


async def test_a_short_answer_is_an_error() -> None:
    async def stream(prompt: Sequence[int], max_tokens: int, qos: str) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ExceptionGroup) as caught:
        await open_loop(stream, [Arrival(0.0, [1], 2, "normal")], 1.0, Clock())
    assert "1 tokens where 2" in str(caught.value.exceptions[0])


def test_arrivals_have_the_rate_and_differ_by_seed() -> None:
    times = poisson_times(50.0, 100.0, 3)
    assert times == sorted(times) == poisson_times(50.0, 100.0, 3) != poisson_times(50.0, 100.0, 4)
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert times[0] > 0
    assert times[-1] < 100.0


def test_a_steady_rate_ignores_both_ends() -> None:
    ends = [100.0 + i for i in range(40)] + [1000.0]
    assert steady_rate(ends) == pytest.approx(1.0)
