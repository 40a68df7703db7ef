"""Whole suite, reference engine: REALTIME finds every slot taken, gets one, and whoever gave it up loses nothing."""

import asyncio
from pathlib import Path

from headrace.chassis.config import load_settings
from headrace.client import AsyncClient
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference
from headrace.standalone.services import Service
from headrace.standalone.single import running

SLOTS = 3
TOKENS = 150


async def test_a_flood_of_batch_gives_way_and_goes_on(tmp_path: Path) -> None:
    reference.install(tmp_path)
    anywhere = {"listen": "127.0.0.1:0"}
    executor = {"engine": "reference", "models": (reference.NAME,), "reference_step_ms": 4, "num_slots": SLOTS}
    settings = load_settings(
        None,
        {
            "models": {"home": tmp_path},
            "gateway": anywhere,
            "scheduler": anywhere,
            "executor": anywhere | executor,
        },
    )
    prompt = [ord(letter) for letter in "flood"]
    order: list[str] = []

    async with running(settings) as suite, AsyncClient(suite.addresses[Service.GATEWAY]) as client:
        begun: asyncio.Queue[int] = asyncio.Queue()

        async def batch(number: int) -> list[int]:
            tokens: list[int] = []
            async for piece in client.stream(
                reference.NAME, [*prompt, 48 + number], qos="batch", max_tokens=TOKENS, ignore_eos=True
            ):
                if not tokens:
                    begun.put_nowait(number)
                tokens += piece.token_ids
            order.append("batch")
            return tokens

        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
            tasks = [group.create_task(batch(number)) for number in range(2 * SLOTS)]
            for _ in range(SLOTS):
                await begun.get()
            answers = await asyncio.gather(
                *(
                    client.generate(reference.NAME, prompt, qos="realtime", max_tokens=5, ignore_eos=True)
                    for _ in range(2)
                )
            )
            order.append("realtime")
        assert order[0] == "realtime", "it waited for a slot"
        assert [list(answer.token_ids) for answer in answers] == [expected_answer(prompt, 5)] * 2
        for number, task in enumerate(tasks):
            assert task.result() == expected_answer([*prompt, 48 + number], TOKENS)
