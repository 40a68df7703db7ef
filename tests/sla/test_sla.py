"""What is promised and what is missed, and the stream up to that moment: no sockets, moments that have passed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.chassis.config import ResultsSettings, SlaDefault
from headrace.core.errors import InvalidRequest
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Precision, QosClass, Sampling
from headrace.core.result_state import ResultState
from headrace.gateway.background import Background
from headrace.gateway.generation import Piece, Usage, Wish
from headrace.gateway.results.log import ResultLog
from headrace.gateway.results.port import Bounds, Summary
from headrace.gateway.results.sqlite import SqliteStore
from headrace.gateway.run import Run
from headrace.gateway.sla import OnMiss, Sla, resolve
from headrace.gateway.sla_stream import until_sla

NONE = SlaDefault()
MODEL = ModelInfo("bytes", "decoder", "d", context_tokens=64, vocab_size=256, eos_token_ids=(0,))


class Span:
    def __init__(self) -> None:
        self.missed: list[tuple[str, str, str]] = []

    def sla_missed(self, promise: str, outcome: str, handle: str = "") -> None:
        self.missed.append((promise, outcome, handle))


def wish(n: int = 1) -> Wish:
    return Wish("r1", MODEL, "hi", Sampling(n=n), True, QosClass.NORMAL, Precision.ANY)


def test_the_promise_that_comes_first_is_due() -> None:
    assert Sla(100, 500, OnMiss.PARTIAL).due(begun=False) == ("first_token_ms", 0.1)
    assert Sla(100, 500, OnMiss.PARTIAL).due(begun=True) == ("total_ms", 0.5)
    assert Sla(0, 500, OnMiss.PARTIAL).due(begun=False) == ("total_ms", 0.5)
    assert Sla(100, 0, OnMiss.PARTIAL).due(begun=True) is None
    assert (Sla(100, 500, OnMiss.PARTIAL).first_s, Sla(100, 500, OnMiss.PARTIAL).last_s) == (0.1, 0.5)


def test_a_request_overrides_its_class_field_by_field() -> None:
    default = SlaDefault(first_token_ms=100, total_ms=500, on_miss="cancel")
    assert resolve(None, None, None, NONE) is None
    assert resolve(0, 0, None, default) is None
    assert resolve(None, None, None, default) == Sla(100, 500, OnMiss.CANCEL)
    assert resolve(None, 800, OnMiss.PARTIAL, default) == Sla(100, 800, OnMiss.PARTIAL)
    assert resolve(0, None, None, default) == Sla(0, 500, OnMiss.CANCEL)
    assert resolve(None, 50, None, default) == Sla(0, 50, OnMiss.CANCEL)  # the class's first token would come after it
    assert resolve(600, None, None, default) == Sla(600, 0, OnMiss.CANCEL)
    with pytest.raises(InvalidRequest, match="over"):
        resolve(600, 500, None, default)


async def test_readers_of_a_log_see_all_of_it() -> None:
    log, seen = ResultLog[bytes](), list[list[bytes]]()

    async def read() -> None:
        got = list[bytes]()
        while True:
            await log.more(len(got), None)
            if len(got) == len(log.pieces):
                break
            got.append(log.pieces[len(got)])
        seen.append(got)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(read())
        for number in range(5):
            log.append(bytes([number]), 1)
            await asyncio.sleep(0)
        log.end(None)
        tasks.create_task(read())
    assert seen == [[bytes([number]) for number in range(5)]] * 3
    assert log.num_tokens == 5


class Made:
    """Pieces that are there at once, then a wait for `go_on`, then the end."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.go_on = asyncio.Event()
        self.there = asyncio.Event()

    async def pieces(self) -> AsyncIterator[Piece]:
        for text in "hel":
            yield Piece(0, text, text.encode() + b"\0\0\0", (), FinishReason.NONE)
        if self.n > 1:
            yield Piece(1, "whole", b"w\0\0\0", (), FinishReason.STOP)
        self.there.set()
        await self.go_on.wait()
        yield Piece(0, "lo", b"l\0\0\0o\0\0\0", (), FinishReason.LENGTH, usage=Usage(2, 5, 0))


@pytest.mark.parametrize("n", [1, 2])
async def test_at_the_sla_all_that_is_there_is_sent_and_the_rest_is_kept(tmp_path: Path, n: int) -> None:
    made, span, demoted = Made(n), Span(), list[Any]()
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 10_000)) as store, asyncio.TaskGroup() as tasks:
        background = Background(tasks, store, ResultsSettings(progress_s=0.01), demoted.append)
        run = Run(wish(n), "tenant", "wire")
        background.start(run, made.pieces(), ExitStack())
        await made.there.wait()
        arrived = asyncio.get_running_loop().time() - 1  # the SLA passed long ago
        sent = [each async for each in until_sla(background, run, Sla(100, 900, OnMiss.PARTIAL), arrived, None, span)]
        assert "".join(each.text for each in sent if each.index == 0) == "hel"
        assert [each.index for each in sent if each.finish_reason == FinishReason.PARTIAL] == [0]
        assert sent[-1].usage.completion_tokens == 2 + n
        assert sent[-1].result.offset == 2 + n
        handle = sent[-1].result.handle
        assert span.missed == [("total_ms", "partial", handle)]
        run.abandon()  # the call is over
        made.go_on.set()
        while background.num_kept:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        stored = await store.find(handle)
        assert stored is not None
        assert (stored.state, stored.num_pieces, stored.num_tokens) == (ResultState.FINISHED, 3 + n, 4 + n)
        rest = [piece async for piece in background.attach("tenant", handle, sent[-1].result.offset)]
        assert len(rest) == 1


async def test_a_whole_answer_is_sent_however_late_its_reader(tmp_path: Path) -> None:
    made, span = Made(1), Span()
    made.go_on.set()
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 10_000)) as store, asyncio.TaskGroup() as tasks:
        background = Background(tasks, store, ResultsSettings(), lambda relay: None)
        run = Run(wish(), "tenant", "wire")
        background.start(run, made.pieces(), ExitStack())
        assert run.task is not None
        await run.task
        arrived = asyncio.get_running_loop().time() - 1
        sent = [each async for each in until_sla(background, run, Sla(100, 900, OnMiss.CANCEL), arrived, None, span)]
        assert "".join(each.text for each in sent) == "hello"
        assert span.missed == []


async def test_the_first_token_in_time_keeps_its_promise(tmp_path: Path) -> None:
    made, span = Made(1), Span()
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 10_000)) as store, asyncio.TaskGroup() as tasks:
        background = Background(tasks, store, ResultsSettings(), lambda relay: None)
        run = Run(wish(), "tenant", "wire")
        background.start(run, made.pieces(), ExitStack())
        await made.there.wait()
        arrived = asyncio.get_running_loop().time() - 1
        stream = until_sla(background, run, Sla(100, 0, OnMiss.CANCEL), arrived, None, span)
        assert (await anext(stream)).text == "h"
        made.go_on.set()
        assert "".join([each.text async for each in stream]) == "ello"
        assert span.missed == []


async def test_a_run_that_is_ended_before_it_begins_gives_back_what_it_holds(tmp_path: Path) -> None:
    held, back = ExitStack(), asyncio.Event()
    held.callback(back.set)
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 10_000)) as store, asyncio.TaskGroup() as tasks:
        background = Background(tasks, store, ResultsSettings(), lambda relay: None)
        run = Run(wish(), "tenant", "wire")
        background.start(run, Made(1).pieces(), held)
        run.abandon()
    assert back.is_set()


@pytest.mark.parametrize("leaves", [True, False], ids=["the caller leaves", "the answer is made"])
async def test_room_that_was_not_needed_is_given_back(tmp_path: Path, leaves: bool) -> None:
    made = Made(1)
    async with SqliteStore(tmp_path / "results.db", Bounds(10, 10_000)) as store, asyncio.TaskGroup() as tasks:
        background = Background(tasks, store, ResultsSettings(progress_s=0.01), lambda relay: None)
        run = Run(wish(), "tenant", "wire")
        background.start(run, made.pieces(), ExitStack())
        await made.there.wait()
        handle = await background.prepare(run)
        assert [each.handle for each in await store.list("tenant")] == [handle]
        if leaves:
            run.abandon()
        else:
            made.go_on.set()
        while background.num_kept:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        assert await store.list("tenant") == []
        assert run.log.ended


async def test_an_answer_without_room_ends_with_its_call(tmp_path: Path) -> None:
    made = Made(1)
    async with SqliteStore(tmp_path / "results.db", Bounds(1, 10_000)) as store, asyncio.TaskGroup() as tasks:
        await store.open(Summary("other", "tenant", "r0", "bytes", 0.0, 3e9, 4e9))
        background = Background(tasks, store, ResultsSettings(), lambda relay: None)
        run = Run(wish(), "tenant", "wire")
        background.start(run, made.pieces(), ExitStack())
        await made.there.wait()
        assert await background.prepare(run) is None
        assert await background.keep(run) is None
        run.abandon()
        assert run.task is not None
        await asyncio.wait([run.task], timeout=20)
        assert run.log.ended
        made.go_on.set()
