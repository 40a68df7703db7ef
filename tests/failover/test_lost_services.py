"""Services that are killed or paused in mid-answer: the caller sees a pause, no seam, and no token twice."""

import asyncio
import dataclasses
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.chassis.config import default_home, load_settings
from headrace.client import AsyncClient, Piece
from headrace.core.errors import Unavailable
from headrace.gateway.app import GatewayHandle
from headrace.models import reference
from headrace.standalone.services import Service
from headrace.standalone.supervisor import supervised

PATIENCE_S = 120
ASKED: list[dict[str, Any]] = [
    {"max_tokens": 60, "ignore_eos": True},
    {"max_tokens": 60, "ignore_eos": True, "temperature": 2.0, "seed": 5, "logprobs": 2},
    {"max_tokens": 60, "temperature": 3.0, "seed": 9, "min_tokens": 50, "repetition_penalty": 1.2, "logprobs": 0},
    {"max_tokens": 60, "ignore_eos": True, "temperature": 2.0, "seed": 2, "n": 3},
    {"max_tokens": 60, "ignore_eos": True, "temperature": 4.0, "seed": 3, "n": 2, "stop": ["e", "Q"]},
    {"max_tokens": 60, "ignore_eos": True, "frequency_penalty": 0.7, "temperature": 1.0, "seed": 1},
]


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Fails the test if the condition does not come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 (another process decides)
            await asyncio.sleep(0.02)


class Stream:
    """One call, read by a task of its own."""

    def __init__(self, client: AsyncClient, model: str, prompt: str, asked: dict[str, Any]) -> None:
        self.pieces: list[Piece] = []
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(client, model, prompt, asked))

    async def _read(self, client: AsyncClient, model: str, prompt: str, asked: dict[str, Any]) -> None:
        async for piece in client.stream(model, prompt, timeout_s=PATIENCE_S, **asked):
            self.pieces.append(piece)
            if len(self.pieces) >= 4:
                self.begun.set()

    @property
    def answer(self) -> dict[int, tuple[Any, ...]]:
        """By index: text, tokens, logprobs, finish."""
        found = {}
        for index in {piece.index for piece in self.pieces}:
            own = [piece for piece in self.pieces if piece.index == index]
            found[index] = (
                "".join(piece.text for piece in own),
                [token for piece in own for token in piece.token_ids],
                [logprob for piece in own for logprob in piece.logprobs],
                [piece.finish_reason for piece in own if piece.finish_reason],
            )
        return found

    @property
    def usage(self) -> tuple[int, int]:
        last = self.pieces[-1].usage
        assert last is not None
        return last.prompt_tokens, last.completion_tokens


def streams(client: AsyncClient, model: str, asked: list[dict[str, Any]]) -> list[Stream]:
    return [Stream(client, model, f"What is the number {n}?", each) for n, each in enumerate(asked)]


async def finished(running: list[Stream]) -> list[Any]:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(stream.task for stream in running))
    return [(stream.answer, stream.usage) for stream in running]


async def begun(running: list[Stream]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(stream.begun.wait() for stream in running))


async def nothing_in_use(gateway: GatewayHandle) -> None:
    """Waits until no call holds anything."""

    async def idle() -> bool:
        return not any(dataclasses.astuple(dataclasses.replace(gateway.in_use(), links=0)))

    await eventually(idle)


def children() -> dict[str, int]:
    """Process id of each service that this process has started and that runs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue  # it has ended meanwhile
        if int(status[1]) == os.getpid() and status[0] != "Z" and "headrace.standalone.process" in command:
            found[command[-2]] = int(folder.name)
    return found


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_answers_go_on_elsewhere_without_a_seam(fleet: Callable[..., Any], how: str) -> None:
    async with fleet(scheduler={"lease_ms": 1_500}) as it:
        gateway = await it.gateway()
        client = await it.client(gateway.address)
        disturbed = streams(client, reference.NAME, ASKED)
        await begun(disturbed)
        victim = await it.busiest()
        if how == "killed":
            victim.kill()
        else:
            victim.pause()
        seen = await finished(disturbed)
        assert it.failovers(), "nobody was on the executor that was lost"
        if how == "paused":
            victim.go_on()  # it finds its streams closed: what it sends now reaches nobody

            async def empty() -> bool:
                return await victim.num_running() == 0

            await eventually(empty)
        undisturbed = streams(client, reference.NAME, ASKED)
        assert seen == await finished(undisturbed)
        await nothing_in_use(gateway)


async def test_the_only_executor_comes_back_and_the_answer_goes_on_there(fleet: Callable[..., Any]) -> None:
    async with fleet(executors=1) as it:
        gateway = await it.gateway()
        client = await it.client(gateway.address)
        disturbed = streams(client, reference.NAME, ASKED[:3])
        await begun(disturbed)
        victim = it.executors[0]
        victim.kill()
        await it.start(Service.EXECUTOR, victim.address)
        seen = await finished(disturbed)
        assert len(it.failovers()) >= 3
        assert seen == await finished(streams(client, reference.NAME, ASKED[:3]))


async def test_a_real_model_gives_the_same_answer(fleet: Callable[..., Any]) -> None:
    asked: list[dict[str, Any]] = [
        {"max_tokens": 40, "ignore_eos": True},
        {"max_tokens": 40, "ignore_eos": True, "temperature": 0.9, "seed": 4, "logprobs": 2},
        {"max_tokens": 40, "ignore_eos": True, "temperature": 1.1, "seed": 6, "n": 2, "repetition_penalty": 1.1},
    ]
    real = {"engine": "openvino", "models": ("smollm2",), "kv_bytes": 2**28}
    async with fleet(models={"home": default_home()}, executor=real) as it:
        gateway = await it.gateway()
        client = await it.client(gateway.address)
        disturbed = streams(client, "smollm2", asked)
        await begun(disturbed)
        (await it.busiest()).kill()
        seen = await finished(disturbed)
        assert it.failovers()
        assert seen == await finished(streams(client, "smollm2", asked))


async def test_running_answers_go_on_and_waiting_ones_are_submitted_again_when_the_scheduler_is_killed(
    fleet: Callable[..., Any],
) -> None:
    """One slot: one answer runs, the others wait."""
    async with fleet(executors=1, executor={"num_slots": 1}) as it:
        gateway = await it.gateway()
        client = await it.client(gateway.address)
        running, *waiting = streams(client, reference.NAME, ASKED[:3])
        await begun([running])
        scheduler = it.settings.gateway.scheduler
        await it.kill_scheduler()
        sent = len(running.pieces)

        async def goes_on() -> bool:
            return len(running.pieces) > sent + 3 or running.task.done()

        await eventually(goes_on)
        await it.start(Service.SCHEDULER, scheduler)
        seen = await finished([running, *waiting])
        assert not it.failovers()
        assert seen == await finished(streams(client, reference.NAME, ASKED[:3]))
        await nothing_in_use(gateway)


async def test_a_killed_gateways_requests_leave_their_executors(fleet: Callable[..., Any]) -> None:
    async with fleet() as it:
        gateway = await it.start(Service.GATEWAY)
        client = await it.client(gateway.address)
        lost = streams(client, reference.NAME, [{"max_tokens": 3000, "ignore_eos": True}] * 4)
        await begun(lost)
        gateway.kill()
        for stream in lost:
            with pytest.raises(Unavailable):
                await stream.task

        async def empty() -> bool:
            return not any([await executor.num_running() for executor in it.executors])

        await eventually(empty)
        again = await it.start(Service.GATEWAY, gateway.address)
        assert again.address == gateway.address
        await finished(streams(client, reference.NAME, ASKED[:2]))


async def test_the_supervisor_starts_each_service_again(tmp_path: Path) -> None:
    """One machine, one process of each: only the killed gateway's streams fail."""
    reference.install(tmp_path)
    anywhere = {"listen": "127.0.0.1:0"}
    executor = {**anywhere, "engine": "reference", "models": (reference.NAME,), "reference_step_ms": 20}
    settings = load_settings(
        None,
        {
            "models": {"home": tmp_path},
            "gateway": anywhere,
            "scheduler": anywhere,
            "executor": executor,
            "encoder": {"model": ""},
            "transport": {"drain_s": 5},
        },
    )
    async with (
        supervised(settings, tmp_path, lambda service, address: None, restart=True) as suite,
        AsyncClient(suite.gateway) as client,
    ):
        for service in (Service.EXECUTOR, Service.SCHEDULER):
            disturbed = streams(client, reference.NAME, ASKED[:4])
            await begun(disturbed)
            os.kill(children()[service], signal.SIGKILL)
            seen = await finished(disturbed)
            assert seen == await finished(streams(client, reference.NAME, ASKED[:4]))
        before = children()[Service.GATEWAY]
        os.kill(before, signal.SIGKILL)

        async def serves() -> bool:
            try:
                await finished(streams(client, reference.NAME, ASKED[:1]))
            except Unavailable:
                return False
            return children()[Service.GATEWAY] != before

        await eventually(serves)
