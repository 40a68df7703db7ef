"""`headrace doctor` names what is really wrong: each fault is provoked in a running suite of the reference engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from grpc import aio

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Sampling
from headrace.models import reference

NAME = reference.NAME


@asynccontextmanager
async def going(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """The work goes on beside the block, and is cancelled at its end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        yield
        for task in tasks:
            task.cancel()


async def again_and_again(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    while True:
        await call()


async def test_long_answers_take_all_memory(watching: Any) -> None:
    async def ask(number: int) -> None:
        await watched.client.generate(NAME, f"long {number}", max_tokens=4000, ignore_eos=True)

    async with watching(executor={"reference_step_ms": 5}) as watched, going(*(ask(number) for number in range(8))):
        await watched.finding("memory pressure")


async def test_realtime_displaces_again_and_again(watching: Any) -> None:
    slots, begun = 8, asyncio.Semaphore(0)

    async def flood(number: int) -> None:
        stream = watched.client.stream(NAME, f"flood {number}", qos="batch", max_tokens=1500, ignore_eos=True)
        first = True
        async for _ in stream:
            if first:
                begun.release()
                first = False

    async with (
        watching(executor={"reference_step_ms": 5, "num_slots": slots}) as watched,
        going(*(flood(number) for number in range(slots))),
    ):
        for _ in range(slots):
            await begun.acquire()
        await watched.begin()
        await asyncio.gather(
            *(
                watched.client.generate(NAME, f"now {number}", qos="realtime", max_tokens=2, ignore_eos=True)
                for number in range(slots)
            )
        )
        await watched.finding("displacement storm")


async def test_executors_idle_beside_the_one_that_everybody_asks_for(watching: Any) -> None:
    async def ask(number: int) -> None:
        await watched.client.generate(NAME, f"bf16 {number}", precision="bf16", max_tokens=1000, ignore_eos=True)

    precisions = ["own", "fp32", "bf16", "int8"]
    async with (
        watching(executor={"reference_step_ms": 5, "num_slots": 2, "precision": precisions}) as watched,
        going(*(ask(number) for number in range(6))),
    ):
        finding = await watched.finding("idle device with a queue")
        assert finding.evidence.startswith("4 requests wait")


async def test_tiny_answers_are_scheduled_longer_than_computed(watching: Any) -> None:
    numbers = count()

    async def ask() -> None:
        await watched.client.generate(NAME, f"{next(numbers)}", max_tokens=1, ignore_eos=True)

    async with watching() as watched, going(*(again_and_again(ask) for _ in range(32))):
        await watched.finding("scheduling share high")


async def test_a_client_that_does_not_read_is_named(watching: Any) -> None:
    sampling = Sampling(max_tokens=4000, n=3, ignore_eos=True, logprobs=20)
    request = pb.GenerateRequest(model=NAME, text="slow", sampling=sampling)
    small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 2**16)]
    async with (
        watching(executor={"reference_step_ms": 2}, gateway={"longest_unread_s": 600}) as watched,
        aio.insecure_channel(watched.gateway, small_window) as channel,
    ):
        call = GatewayServiceStub(channel).Generate(request)
        try:
            await call.read()
            await watched.finding("client reads slowly")
        finally:
            call.cancel()
