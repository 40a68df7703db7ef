"""Every process of a suite leaves and is followed by a new one at its address, under load: nothing is lost."""

import asyncio
from typing import Any

from headrace.client import AsyncClient
from headrace.core.errors import Unavailable
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference
from headrace.standalone.services import Service

PATIENCE_S = 120
CALLERS = 6
MAX_TOKENS = 40


class Load:
    """Callers who know all gateways, and ask another where one refuses. Only one that leaves may."""

    def __init__(self, clients: dict[str, AsyncClient]) -> None:
        self.clients = clients
        self.leaving = ""
        self.over = False
        self.num_answers = 0

    async def call(self, caller: int) -> None:
        """Asks until it is over; a call that has a token has all, and they are the right ones."""
        number = 0
        while not self.over:
            number += 1
            prompt = f"{caller} asks {number}"
            expected = expected_answer(list(prompt.encode()), MAX_TOKENS)
            for address in [*self.clients, *self.clients]:
                token_ids = await self.answer(address, prompt)
                if token_ids is not None:
                    break
            assert token_ids == expected, (prompt, token_ids)
            self.num_answers += 1

    async def answer(self, address: str, prompt: str) -> list[int] | None:
        """None where it was refused."""
        token_ids: list[int] = []
        stream = self.clients[address].stream(
            reference.NAME, prompt, max_tokens=MAX_TOKENS, ignore_eos=True, timeout_s=PATIENCE_S
        )
        may_refuse = self.leaving == address
        try:
            async for piece in stream:
                token_ids += piece.token_ids
        except Unavailable:
            assert not token_ids, "a call was cut"
            assert may_refuse or self.leaving == address, f"{address} refused and was not leaving"
            return None
        return token_ids

    async def answers(self, count: int) -> None:
        """Returns after so many more."""
        wanted = self.num_answers + count
        while self.num_answers < wanted:  # noqa: ASYNC110 (callers count)
            await asyncio.sleep(0.01)


async def test_a_rolling_restart_under_load_loses_nothing(fleet: Any) -> None:
    async with fleet(step_ms=3, transport={"drain_s": PATIENCE_S}) as it, asyncio.timeout(PATIENCE_S):
        preprocess = await it.start(Service.PREPROCESS)
        gateway = it.settings.gateway.model_copy(update={"preprocess": preprocess.address})
        it.settings = it.settings.model_copy(update={"gateway": gateway})
        gateways = [await it.start(Service.GATEWAY) for _ in range(2)]
        load = Load({each.address: await it.client(each.address, retries=0) for each in gateways})
        async with asyncio.TaskGroup() as tasks:
            for caller in range(CALLERS):
                tasks.create_task(load.call(caller))
            for running in (it.scheduler, *it.executors, preprocess, *gateways):
                await load.answers(2 * CALLERS)
                load.leaving = running.address
                running.process.terminate()
                assert await running.process.wait() == 0, running.service
                await it.start(running.service, running.address)
                load.leaving = ""
            await load.answers(2 * CALLERS)
            load.over = True
