"""What a signal does while a program starts, serves and drains."""

import asyncio
import os
import signal

import pytest

from headrace.standalone.stopping import stop_signals


async def test_before_serving_a_signal_cancels() -> None:
    async def program() -> None:
        with stop_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(program())


async def test_the_first_signal_lets_it_drain_and_the_second_cuts_that() -> None:
    drained: list[str] = []

    async def program() -> None:
        with stop_signals() as stop:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            await stop.wait()
            drained.append("began")
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
            drained.append("ended")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(program())
    assert drained == ["began"]
