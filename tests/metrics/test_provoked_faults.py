"""`headrace doctor` names what is really wrong: each fault is provoked in a running suite of the reference engine."""

import asyncio
import string
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from grpc import aio

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Sampling
from headrace.cli.diagnosis import diagnose
from headrace.core.errors import InvalidRequest
from headrace.models import reference

NAME = reference.NAME
TEXT = f"{string.ascii_letters} {string.digits} "
BOUND_S = 120


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


async def test_nothing_is_wrong_with_a_suite_that_has_enough_of_everything(watching: Any) -> None:
    """A machine that does much else may hold up single steps: of several looks one finds nothing wrong."""
    numbers = count()

    async def ask() -> None:
        await watched.client.generate(NAME, f"well {next(numbers)}", max_tokens=20, ignore_eos=True)

    async with (
        watching(executor={"reference_step_ms": 20}) as watched,
        going(*(again_and_again(ask) for _ in range(4))),
    ):
        async with asyncio.timeout(BOUND_S):
            while True:
                await watched.begin()
                figures = await watched.until(lambda figures: figures.grown("requests_total") >= 8)
                if not (found := diagnose(figures)):
                    return
                print(found)


async def test_more_ask_than_there_are_slots(watching: Any) -> None:
    async def ask(number: int) -> None:
        await watched.client.generate(NAME, f"long {number}", max_tokens=400, ignore_eos=True)

    busy = {"reference_step_ms": 5, "num_slots": 2}
    async with watching(executor=busy) as watched, going(*(ask(number) for number in range(6))):
        finding = await watched.finding("device full")
        assert finding.evidence == "2 of 2 slots taken, 4 requests wait"


async def test_each_row_costs_as_much_as_the_last(watching: Any) -> None:
    async def ask(number: int, max_tokens: int) -> None:
        await watched.client.generate(NAME, f"{number} {TEXT}", max_tokens=max_tokens, ignore_eos=True)

    async with watching(executor={"reference_row_ms": 8, "speculation": 0}) as watched:
        await ask(0, 40)
        await asyncio.gather(*(ask(number, 20) for number in range(1, 9)))
        await watched.finding("throughput does not rise with batch")


async def test_prompts_wait_for_the_only_tokenizer_and_so_do_first_tokens(watching: Any) -> None:
    """Prompts that are far too long are tokenised before anybody knows how long they are."""
    numbers = count()

    async def ask_for_too_much() -> None:
        try:
            await watched.client.generate(NAME, f"{next(numbers)}" + TEXT * 4_000)
        except InvalidRequest:
            return
        raise AssertionError("a prompt that is no context can hold")

    async def ask() -> None:
        await watched.client.generate(NAME, f"short {next(numbers)}", max_tokens=2, ignore_eos=True)

    busy = (again_and_again(ask_for_too_much) for _ in range(12))
    async with watching(gateway={"tokenizer_threads": 1}) as watched, going(*busy, again_and_again(ask)):
        await watched.finding("tokenizer saturated")
        await watched.finding("slow first token: preprocess")


async def test_first_tokens_wait_for_the_screen(watching: Any) -> None:
    async with watching(screen={"policy": "block", "budget_ms": 60_000}) as watched:
        await watched.client.generate(NAME, "a kind question", max_tokens=2, ignore_eos=True)
        await watched.finding("slow first token: screen")


async def test_a_screen_without_time_gives_no_verdicts(watching: Any) -> None:
    async with watching(screen={"policy": "block", "budget_ms": 1, "on_timeout": "open"}) as watched:
        await watched.client.generate(NAME, TEXT * 50, max_tokens=2, ignore_eos=True)
        await watched.finding("screen without verdicts")


async def test_a_bucket_of_one_long_text_and_many_short_ones(watching: Any) -> None:
    """Between two powers of two: in each batch fifteen of its rows are padded to nearly twice their length."""
    long, short = (" ".join(["word"] * num_words) for num_words in (120, 63))
    async with watching(scheduler={"buckets": "power_of_two"}, encoder={"model": "minilm"}) as watched:
        for _ in range(2):
            await watched.client.embed("minilm", [long, *[short] * 15] * 4)
        await watched.finding("bucket edges gone wrong")


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
        assert "3 of 4 devices" in finding.evidence


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
