"""Constraints on answers at the gateway: refused before anything is done for them, else passed on as they are."""

import asyncio
import json
import time

import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.types.v1.types_pb2 import Choice, Sampling
from headrace.chassis import signals
from headrace.chassis.status import from_rpc_error
from headrace.client import AsyncClient
from headrace.core.constraint import MAX_CHOICES, MAX_CONSTRAINT_BYTES
from headrace.core.errors import InvalidRequest, Overloaded
from headrace.gateway import constraint_check

NESTED = "[" * 30_000
BAD = [
    ({"json_schema": ""}, "1 character"),
    ({"json_schema": "{"}, "structured"),
    ({"json_schema": "3"}, "structured"),
    ({"json_schema": NESTED}, "structured"),
    ({"json_schema": '{"type": "nothing"}'}, "structured"),
    ({"json_schema": '{"type": "array", "uniqueItems": true}'}, "structured"),
    ({"json_schema": '{"$ref": "http://example.org/schema"}'}, "structured"),
    ({"json_schema": json.dumps({"description": "x" * MAX_CONSTRAINT_BYTES})}, f"{MAX_CONSTRAINT_BYTES} bytes"),
    ({"regex": ""}, "1 character"),
    ({"regex": "(a"}, "structured"),
    ({"choice": Choice()}, f"1..{MAX_CHOICES}"),
    ({"choice": Choice(texts=["a", ""])}, f"1..{MAX_CHOICES}"),
    ({"choice": Choice(texts=map(str, range(MAX_CHOICES + 1)))}, f"1..{MAX_CHOICES}"),
    ({"grammar": "start: nothing"}, "structured"),
    ({"grammar": "no grammar at all"}, "structured"),
]


@pytest.mark.parametrize(("sampling", "limit"), BAD, ids=lambda value: str(value)[:40])
async def test_what_cannot_be_kept_is_refused_first(world, sampling, limit):
    (field,) = sampling
    async with world() as there:
        request = pb.GenerateRequest(model="bytes", text="x", sampling=Sampling(**sampling))
        for _ in range(2):  # the second time it is known
            _, error = await there.on_the_wire(request)
            refused = from_rpc_error(error)
            assert isinstance(refused, InvalidRequest)
            assert refused.field == f"sampling.{field}"
            assert limit in refused.limit
        await there.idle()
        assert not there.preparer.parents
        assert not there.scheduler.submissions


async def test_min_tokens_cannot_go_with_a_constraint(world):
    async with world() as there:
        with pytest.raises(InvalidRequest) as refused:
            await there.client.generate("bytes", "x", regex="a+", min_tokens=3)
        assert refused.value.field == "sampling.min_tokens"


async def test_the_executor_gets_it_as_it_was_given(world):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with world() as there:
        await there.client.generate("bytes", "x", json_schema=schema)
        await there.client.generate("bytes", "x", json_object=True)
        await there.client.generate("bytes", "x", choice=["a", "b"])
        await there.client.generate("bytes", "x", json_object=False)
        first, second, third, fourth = (start.sampling for start in there.executor.starts)
        assert json.loads(first.json_schema) == schema
        assert second.json_object
        assert list(third.choice.texts) == ["a", "b"]
        assert fourth.WhichOneof("constraint") is None
        await there.idle()
        kinds = [span.attributes.get(signals.CONSTRAINT) for span in there.spans.get_finished_spans()]
        assert kinds == ["json_schema", "json_object", "choice", None]


async def test_a_client_takes_one_constraint_a_call(world):
    async with world() as there:
        with pytest.raises(InvalidRequest, match="cannot both hold"):
            await there.client.generate("bytes", "x", regex="a", grammar='start: "a"')
        with pytest.raises(InvalidRequest) as refused:
            await there.client.generate("bytes", "x", choice=[3])
        assert refused.value.field == "sampling.choice"


async def test_who_would_wait_too_long_is_told_to_come_again(world, monkeypatch):
    """Others are served meanwhile."""
    monkeypatch.setattr(constraint_check, "CHECK_S", 0.1)
    monkeypatch.setattr(constraint_check, "check", lambda constraint: time.sleep(0.5))
    async with world() as there, AsyncClient(there.gateway.address, retries=0) as other:
        waiting = asyncio.gather(
            *(there.client.generate("bytes", "x", regex=f"a{number}") for number in range(3)), return_exceptions=True
        )
        assert (await other.generate("bytes", "x")).text == "hello"
        assert [type(each) for each in await waiting] == [Overloaded] * 3
        await there.idle()
