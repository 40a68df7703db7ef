"""Waiting requests share batches in turn, bounded, and a fault is its batch's only."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from headrace.core.errors import QueueFull
from headrace.core.screening import Verdict
from headrace.preprocess.screen.batcher import open_batcher


class Words:
    """A word is a window; 'bad' is found. Keeps its batches; the first waits until `go` is set."""

    name = "words"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()

    def split(self, text: str) -> list[str]:
        return text.split()

    def judge(self, windows: list[str]) -> list[Verdict]:
        self.batches.append(windows)
        assert self.go.wait(20)
        if "fault" in windows:
            raise RuntimeError("fault")
        return [Verdict("harm" if word == "bad" else "", len(word) / 100, self.name) for word in windows]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (nothing there could set an event)
            await asyncio.sleep(0.001)


async def test_a_long_text_does_not_hold_up_a_short_one():
    screen = Words()
    async with open_batcher(screen, threads=1, max_batch=2, max_waiting=10) as batcher, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(batcher.screen(["a b c d e f"]))
        await until(lambda: screen.batches)
        second = tasks.create_task(batcher.screen(["tea"]))
        third = tasks.create_task(batcher.screen(["bad", "milk"]))
        await until(lambda: batcher.num_requests == 3)
        screen.go.set()
        assert await second == (Verdict("", 0.03, "words"), 1)
        assert await third == (Verdict("harm", 0.03, "words"), 2)
        assert await first == (Verdict("", 0.01, "words"), 6)
    assert screen.batches[0] == ["a", "b"]
    assert max(map(len, screen.batches)) == 2
    assert batcher.num_requests == 0
    places = {word: place for place, batch in enumerate(screen.batches) for word in batch}
    assert places["tea"] < places["f"]


async def test_one_too_many_is_refused_at_once():
    screen = Words()
    async with open_batcher(screen, threads=1, max_batch=2, max_waiting=1) as batcher, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(batcher.screen(["tea"]))
        await until(lambda: screen.batches)
        with pytest.raises(QueueFull):
            await batcher.screen(["milk"])
        screen.go.set()
        assert (await waiting)[0].category == ""


async def test_a_fault_ends_its_own_batch_only():
    screen = Words()
    screen.go.set()
    async with open_batcher(screen, threads=1, max_batch=4, max_waiting=10) as batcher:
        with pytest.raises(RuntimeError, match="fault"):
            await batcher.screen(["fault"])
        assert (await batcher.screen(["tea"]))[0].category == ""


async def test_who_has_gone_is_forgotten():
    screen = Words()
    async with open_batcher(screen, threads=1, max_batch=1, max_waiting=10) as batcher:
        first = asyncio.create_task(batcher.screen(["one"]))
        await until(lambda: screen.batches)
        gone = asyncio.create_task(batcher.screen(["gone"]))
        await until(lambda: batcher.num_requests == 2)
        gone.cancel()
        await asyncio.wait((gone,))
        screen.go.set()
        await first
        await batcher.screen(["two"])
    assert screen.batches == [["one"], ["two"]]
