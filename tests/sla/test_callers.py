"""Partial answers as callers without asyncio have them: the blocking client and the command line."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli import generate, results
from headrace.client import Client, FinishReason, Result, ResultState
from headrace.core.errors import InvalidRequest, ResultNotFound


async def waits(run: Any) -> None:
    run.send(b"hel")
    await asyncio.Event().wait()


def by_hand(address: str) -> list[Result]:
    with Client(address) as client:
        part = client.generate("bytes", "hi", sla_total_ms=60)
        assert part.finish_reason is FinishReason.PARTIAL
        assert part.result is not None
        for piece in client.attach_result(part.result.handle):
            assert piece.text == "hel"
            assert piece.result is not None
            assert (piece.result.handle, piece.result.offset) == (part.result.handle, 1)
            break
        listed = client.list_results()
        client.cancel_result(part.result.handle)
        with pytest.raises(ResultNotFound):
            client.cancel_result(part.result.handle)
        with pytest.raises(InvalidRequest, match="offset"):
            next(client.attach_result(part.result.handle, -1))
        with pytest.raises(InvalidRequest, match="on_miss"):
            client.generate("bytes", "hi", sla_total_ms=60, on_miss="never")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="SLA"):
            client.generate("bytes", "hi", sla_total_ms=2**70)
        assert client.list_results() == []
        return listed


async def test_the_blocking_client(world: Callable[..., Any]) -> None:
    async with world() as w:
        w.executor.script = waits
        (listed,) = await asyncio.to_thread(by_hand, w.gateway.address)
        assert (listed.state, listed.expires_s, listed.model) == (ResultState.RUNNING, None, "bytes")
        await w.idle()


async def test_the_commands(world: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    async with world() as w:
        go_on = asyncio.Event()

        async def script(run: Any) -> None:
            await go_on.wait()
            run.send(b"hello\0", 0, FinishReason.STOP)

        w.executor.script = script
        address = w.gateway.address
        await asyncio.to_thread(
            generate.generate, "hi", model="bytes", sla_total_ms=60, on_miss="partial", address=address
        )
        said = capsys.readouterr()
        assert said.out == "\n"
        (listed,) = await w.client.list_results()
        assert f"partial, 2 tokens in, 0 out; the rest: headrace results attach {listed.handle} --offset 0" in said.err
        await asyncio.to_thread(results.list_, None, address)
        assert listed.handle in capsys.readouterr().out
        go_on.set()
        await asyncio.to_thread(results.attach, listed.handle, 0, None, address)
        said = capsys.readouterr()
        assert (said.out, said.err) == ("hello\n", "stop\n")
        await asyncio.to_thread(results.cancel, listed.handle, None, address)
        assert await w.client.list_results() == []
