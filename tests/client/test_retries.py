"""When the clients call again, and when they do not: a scripted gateway on a real socket counts the calls."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1 import gateway_pb2_grpc
from headrace.api.types.v1.types_pb2 import Usage
from headrace.chassis.interceptors import StatusInterceptor
from headrace.client import AsyncClient, Client
from headrace.client.retries import Retries, RetryBudget
from headrace.core.errors import InvalidRequest, Overloaded, QueueFull, Unavailable

SOON_S = 0.01
REFUSED = QueueFull("full", retry_after_s=SOON_S)
ANSWER = pb.GenerateResponse(
    text="hi", finish_reason="FINISH_REASON_STOP", usage=Usage(prompt_tokens=1, completion_tokens=1)
)


class Scripted(gateway_pb2_grpc.GatewayServiceServicer):
    """Fails with `faults` in turn, after `before` a piece or not, and answers once there are none left."""

    def __init__(self):
        self.faults, self.num_calls, self.before, self.metadata = [], 0, False, {}

    def _next(self, context):
        self.num_calls += 1
        self.metadata = dict(context.invocation_metadata())
        return self.faults.pop(0) if self.faults else None

    async def Generate(self, request, context):
        fault = self._next(context)
        if self.before:
            yield pb.GenerateResponse(text="h")
        if fault:
            raise fault
        yield ANSWER

    async def ListModels(self, request, context):
        if fault := self._next(context):
            raise fault
        return pb.ListModelsResponse()


@asynccontextmanager
async def serving(faults, **options):
    gateway, server = Scripted(), grpc.aio.server(interceptors=[StatusInterceptor()])
    gateway.faults = list(faults)
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(gateway, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with AsyncClient(address, **options) as client:
            with Client(address, **options) as blocking:
                yield gateway, client, blocking
    finally:
        await server.stop(0)


async def test_a_refused_call_is_made_again_until_it_is_answered():
    async with serving([REFUSED, REFUSED, Unavailable("away")]) as (gateway, client, _):
        assert (await client.generate("m", "x")).text == "hi"
        assert gateway.num_calls == 4


async def test_so_are_calls_with_one_answer_and_the_blocking_clients():
    async with serving([REFUSED]) as (gateway, client, blocking):
        assert await client.models() == []
        gateway.faults = [REFUSED, REFUSED]
        assert (await asyncio.to_thread(blocking.generate, "m", "x")).text == "hi"
        gateway.faults = [REFUSED]
        assert await asyncio.to_thread(blocking.models) == []
        assert gateway.num_calls == 2 + 3 + 2


async def test_the_last_refusal_is_raised_after_so_many_retries():
    async with serving([REFUSED] * 9, retries=2) as (gateway, client, blocking):
        with pytest.raises(QueueFull):
            await client.generate("m", "x")
        assert gateway.num_calls == 3
        with pytest.raises(QueueFull):
            await asyncio.to_thread(blocking.generate, "m", "x")
        assert gateway.num_calls == 6


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        (REFUSED, {"retries": 0}),
        (InvalidRequest("never"), {}),
    ],
)
async def test_switched_off_or_hopeless_is_asked_once(fault, options):
    async with serving([fault], **options) as (gateway, client, _):
        with pytest.raises(type(fault)):
            await client.generate("m", "x")
        assert gateway.num_calls == 1


async def test_never_after_the_first_piece():
    async with serving([REFUSED]) as (gateway, client, blocking):
        gateway.before = True
        stream = client.stream("m", "x")
        seen = [(await anext(stream)).text]
        with pytest.raises(QueueFull):
            await anext(stream)
        gateway.faults = [Unavailable("away")]
        with pytest.raises(Unavailable):
            await asyncio.to_thread(lambda: seen.extend(piece.text for piece in blocking.stream("m", "x")))
        assert (seen, gateway.num_calls) == (["h", "h"], 2)


async def test_no_wait_goes_beyond_the_timeout():
    """A gateway that says to come back in an hour is not waited for."""
    async with serving([QueueFull("full", retry_after_s=3600)]) as (gateway, client, _):
        with pytest.raises(QueueFull):
            await client.generate("m", "x", timeout_s=60)
        assert gateway.num_calls == 1


async def test_a_retry_has_the_time_that_is_left():
    lefts = []

    async def call(left_s):
        lefts.append(left_s)
        if len(lefts) == 1:
            raise REFUSED

    await Retries(1).run(call, 60.0)
    assert lefts[1] <= lefts[0] - SOON_S
    assert lefts[0] <= 60.0


async def test_the_key_is_sent():
    async with serving([], api_key="hr_k") as (gateway, client, blocking):
        await client.models()
        assert gateway.metadata["authorization"] == "Bearer hr_k"
        await asyncio.to_thread(blocking.models)
        assert gateway.metadata["authorization"] == "Bearer hr_k"


def test_the_budget_is_a_share_of_the_calls_and_a_few_a_second():
    now = 0.0
    budget = RetryBudget(share=0.1, per_s=3, most=10, clock=lambda: now)
    assert [budget.take() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(21):
        budget.called()
    assert [budget.take() for _ in range(3)] == [True, True, False]
    now = 1.0
    assert [budget.take() for _ in range(4)] == [True] * 3 + [False]


async def test_without_budget_nothing_is_tried_again():
    calls = []

    async def call(left_s):
        calls.append(left_s)
        raise Unavailable("away")

    budget = RetryBudget(share=0, per_s=0, most=1)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await Retries(3, budget).run(call, None)
    assert calls == [None] * 4


async def test_a_limit_without_a_word_on_when_is_final():
    calls = []

    async def call(left_s):
        calls.append(left_s)
        raise Overloaded("too large a message")

    with pytest.raises(Overloaded):
        await Retries(3).run(call, 5.0)
    assert len(calls) == 1
