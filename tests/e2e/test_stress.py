"""Whole suite, reference engine: many cancels, and every bad input at once beside good streams. Nothing is left."""

import asyncio
import dataclasses
import random
from contextlib import asynccontextmanager

import grpc
import pytest

from headrace.api.executor.v1 import executor_pb2
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.types.v1.types_pb2 import Sampling
from headrace.chassis.config import load_settings
from headrace.chassis.status import from_rpc_error
from headrace.client import AsyncClient
from headrace.core.errors import InvalidRequest, ModelNotFound, Overloaded
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference
from headrace.standalone.services import Service
from headrace.standalone.single import running

MODEL = reference.NAME


@asynccontextmanager
async def suite(tmp_path, step_ms, slots=32):
    reference.install(tmp_path)
    anywhere = {"listen": "127.0.0.1:0"}
    settings = load_settings(
        None,
        {
            "models": {"home": tmp_path},
            "gateway": anywhere,
            "scheduler": anywhere,
            "executor": {
                **anywhere,
                "engine": "reference",
                "models": (MODEL,),
                "reference_step_ms": step_ms,
                "num_slots": slots,
            },
        },
    )
    async with running(settings) as it:
        yield it


async def executor_status(it):
    async with grpc.aio.insecure_channel(it.addresses[Service.EXECUTOR]) as channel:
        return await ExecutorServiceStub(channel).GetStatus(executor_pb2.GetStatusRequest())


async def nothing_in_use(it):
    """Waits, bounded, until nobody holds anything; then shows that the engine has stopped stepping."""
    async with asyncio.timeout(30):
        while True:
            held = it.handles[Service.GATEWAY].in_use()
            now = await executor_status(it)
            counts = (
                *dataclasses.astuple(dataclasses.replace(held, links=0)),
                now.num_running,
                now.num_waiting,
                now.num_slots_in_use,
                now.num_blocks_in_use,
            )
            if not any(counts):
                break
            await asyncio.sleep(0.05)
    steps = (await executor_status(it)).num_steps
    await asyncio.sleep(0.1)
    assert (await executor_status(it)).num_steps == steps


@pytest.mark.timeout(240)
async def test_a_thousand_cancelled_streams_leave_nothing(tmp_path):
    rng = random.Random(4)
    async with suite(tmp_path, step_ms=1) as it, AsyncClient(it.gateway) as client:
        in_flight = asyncio.Semaphore(100)

        async def cancelled(number):
            async with in_flight:
                many = number % 10 == 0
                options = {"n": 3, "temperature": 1.0} if many else {}
                stream = client.stream(MODEL, f"stream {number}", max_tokens=500, **options)
                task = asyncio.create_task(anext(stream))
                moment = rng.random()
                await asyncio.wait([task], timeout=moment * 0.05 if moment < 0.5 else 5)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await stream.aclose()

        async with asyncio.TaskGroup() as tasks:
            for number in range(1000):
                tasks.create_task(cancelled(number))
        await nothing_in_use(it)
        answer = await client.generate(MODEL, "still well", max_tokens=12)
        assert list(answer.token_ids) == expected_answer(list(b"still well"), 12)
        await nothing_in_use(it)


def raw(**fields):
    return gateway_pb2.GenerateRequest(model=MODEL, **fields).SerializeToString()


BAD = [
    ("unknown model", gateway_pb2.GenerateRequest(model="no", text="x").SerializeToString(), ModelNotFound, "model"),
    ("no prompt", raw(), InvalidRequest, "prompt"),
    ("empty text", raw(text=""), InvalidRequest, "text"),
    ("too long", raw(text="x" * 5000), InvalidRequest, "text"),
    ("invalid UTF-8", raw(text="ab").replace(b"ab", b"\xff\xfe"), InvalidRequest, "text"),
    ("greedy with top_p", raw(text="x", sampling=Sampling(temperature=0, top_p=0.5)), InvalidRequest, "temperature"),
    ("negative temperature", raw(text="x", sampling=Sampling(temperature=-1)), InvalidRequest, "temperature"),
    ("not a number", raw(text="x", sampling=Sampling(temperature=float("nan"))), InvalidRequest, "temperature"),
    ("no max_tokens", raw(text="x", sampling=Sampling(max_tokens=0)), InvalidRequest, "max_tokens"),
    ("huge max_tokens", raw(text="x", sampling=Sampling(max_tokens=2**32 - 1)), InvalidRequest, "max_tokens"),
    (
        "negative max_tokens",
        raw(text="x") + b"\x2a\x0b\x08" + b"\xff" * 9 + b"\x01",
        InvalidRequest,
        "max_tokens",
    ),  # varint -1 is cut to 2^32 - 1
    (
        "min over max",
        raw(text="x", sampling=Sampling(max_tokens=2, min_tokens=3)),
        InvalidRequest,
        "min_tokens",
    ),
    (
        "token outside the vocabulary",
        raw(tokens=gateway_pb2.TokenPrompt(token_ids=(600).to_bytes(4, "little"))),
        InvalidRequest,
        "token_ids",
    ),
    ("half a token", raw(tokens=gateway_pb2.TokenPrompt(token_ids=b"abc")), InvalidRequest, "token_ids"),
    ("message over the limit", raw(text="x" * (5 * 2**20)), Overloaded, ""),
    ("no message at all", b"\xff\xff\xff", InvalidRequest, "message"),
]


async def test_every_bad_input_at_once_beside_sixteen_good_streams(tmp_path):
    async with (
        suite(tmp_path, step_ms=2) as it,
        AsyncClient(it.gateway) as client,
        grpc.aio.insecure_channel(it.gateway, options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        generate = channel.unary_stream("/headrace.gateway.v1.GatewayService/Generate")
        failures = {}
        unread = generate(raw(text="nobody reads this", sampling=Sampling(max_tokens=3000)))

        async def good(number):
            answer = await client.generate(MODEL, f"good {number}", max_tokens=300)
            assert list(answer.token_ids) == expected_answer(list(f"good {number}".encode()), 300)

        async def bad(name, message):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in generate(message, timeout=20):
                    pass
            failures[name] = from_rpc_error(caught.value)

        async with asyncio.TaskGroup() as tasks:
            for number in range(16):
                tasks.create_task(good(number))
            await asyncio.sleep(0.1)
            for name, message, _, _ in BAD * 3:
                tasks.create_task(bad(name, message))
        unread.cancel()
        for name, _, kind, field in BAD:
            error = failures[name]
            assert isinstance(error, kind), (name, repr(error))
            assert field in error.field, (name, error.field, error.message)
            if field:
                assert error.limit, name
        await nothing_in_use(it)
