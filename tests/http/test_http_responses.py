"""/v1/responses over HTTP with OpenAI's own client: at once, and in the background by the gateway's results."""

import asyncio

import httpx2
import openai
import pytest

from headrace.api.types.v1.types_pb2 import Fault
from headrace.client import Message
from headrace.gateway.tenants.key import digest, new_key
from headrace.models import reference

MODEL = reference.NAME
H = b"\x68\0\0\0"
ENDED = ("completed", "incomplete", "failed", "cancelled")


def ended(client, response):
    """The response once it has ended."""
    while response.status not in ENDED:
        response = client.responses.retrieve(response.id)
    return response


def expected(grpc_client, messages, max_tokens):
    return grpc_client.generate(MODEL, messages, max_tokens=max_tokens)


def test_it_is_answered_as_over_grpc(client, grpc_client):
    answer = client.responses.create(
        model=MODEL, instructions="Be brief", input="Hello", temperature=0, max_output_tokens=24
    )
    theirs = expected(grpc_client, [Message("system", "Be brief"), Message("user", "Hello")], 24)
    assert answer.output_text == theirs.text
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (theirs.usage.prompt_tokens, 24)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)  # nothing is kept of it


def test_items_may_be_of_parts_and_an_answer_may_be_sent_back(client, grpc_client):
    first = client.responses.create(model=MODEL, input="Hello", temperature=0, max_output_tokens=4)
    turns = [
        {"role": "developer", "content": "Be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"role": "user", "content": "And you?"},
    ]
    answer = client.responses.create(model=MODEL, input=turns, temperature=0, max_output_tokens=8)
    same = [("system", "Be brief"), ("user", "Hello"), ("assistant", first.output_text), ("user", "And you?")]
    assert answer.output_text == expected(grpc_client, [Message(*turn) for turn in same], 8).text


def test_a_stream_says_what_the_whole_answer_says(client):
    asked = {"model": MODEL, "input": "Hello", "temperature": 0, "max_output_tokens": 20}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.type for event in events][:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage == whole.usage


def test_one_that_ends_by_itself_is_completed(client):
    with client.responses.stream(model=MODEL, input="1234567\x04", temperature=0) as stream:
        final = stream.get_final_response()
    assert (final.status, final.incomplete_details) == ("completed", None)


def test_a_background_answer_is_found_again_until_it_is_deleted(client, grpc_client):
    asked = {"model": MODEL, "input": "Hello", "temperature": 0, "max_output_tokens": 60}
    begun = client.responses.create(**asked, background=True)
    assert begun.background
    assert begun.status in ("queued", "in_progress", *ENDED)
    answer = ended(client, begun)
    theirs = expected(grpc_client, [Message("user", "Hello")], 60)
    assert (answer.output_text, answer.usage.output_tokens) == (theirs.text, 60)
    assert answer.status == "incomplete"
    assert [each.handle for each in grpc_client.list_results()] == [answer.id.removeprefix("resp_")]
    events = list(client.responses.retrieve(answer.id, stream=True))
    middle = len(events) // 2
    later = list(client.responses.retrieve(answer.id, stream=True, starting_after=events[middle].sequence_number))
    assert later == events[middle + 1 :]
    assert client.responses.cancel(answer.id).status == "incomplete", "it has ended"
    client.responses.delete(answer.id)
    for gone in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            gone(answer.id)


async def test_a_stream_that_is_lost_is_gone_on_with(world):
    """The reader has seen two pieces; the answer is finished without it."""
    left = asyncio.Event()

    async def slow(member, send):
        for _ in range(2):
            send(member, token_ids=H)
        await left.wait()
        for _ in range(2):
            send(member, token_ids=H)
        send(member, token_ids=H, finish_reason="FINISH_REASON_STOP")

    async with world() as w, async_client(w) as client:
        w.executor.script = slow
        asked = {"model": "bytes", "input": "x", "background": True, "stream": True}
        stream, seen = await client.responses.create(**asked), []
        async for event in stream:
            seen.append(event)
            if "".join(each.delta for each in seen if each.type.endswith("text.delta")) == "hh":
                break
        await stream.close()
        left.set()
        after = seen[-1].sequence_number
        again = await client.responses.retrieve(seen[0].response.id, stream=True, starting_after=after)
        rest = [event async for event in again]
        assert "".join(each.delta for each in rest if each.type.endswith("text.delta")) == "hhh"
        assert rest[0].sequence_number > after
        assert (rest[-1].type, rest[-1].response.output_text) == ("response.completed", "hhhhh")
        assert not w.executor.cancelled
        await w.idle()


async def test_a_cancelled_one_keeps_what_there_was(world, until):
    async def one_then_nothing(member, send):
        send(member, token_ids=H)
        await asyncio.Event().wait()

    async with world() as w, async_client(w) as client:
        w.executor.script = one_then_nothing
        begun = await client.responses.create(model="bytes", input="x", background=True)
        reading = asyncio.create_task(_events_of(await client.responses.retrieve(begun.id, stream=True)))
        await until(lambda: w.executor.steps)
        cancelled = await client.responses.cancel(begun.id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "h")
        assert (await reading)[-1].type == "response.cancelled"
        await until(lambda: len(w.executor.cancelled) == 1)
        await w.idle()
        assert (await client.responses.retrieve(begun.id)).status == "cancelled"


async def test_a_failure_is_the_last_event(world):
    async def breaks(member, send):
        send(member, token_ids=H)
        send(member, fault=Fault(reason="ENGINE_FAULT", message="it broke, incident 12"))

    async with world() as w, async_client(w) as client:
        w.executor.script = breaks
        for background in (True, False):
            stream = await client.responses.create(model="bytes", input="x", background=background, stream=True)
            last = (await _events_of(stream))[-1]
            assert (last.type, last.response.status) == ("response.failed", "failed")
            assert last.response.error.message == "it broke, incident 12"
            assert last.response.output_text == "h"
        with pytest.raises(openai.InternalServerError, match="incident 12"):
            await client.responses.create(model="bytes", input="x")
        await w.idle()


async def test_results_are_their_tenants(world, tmp_path):
    keys = {"mills": new_key(), "weir": new_key()}
    file = tmp_path / "keys.toml"
    file.write_text("".join(f'[tenant.{name}]\nkey_sha256 = ["{digest(key)}"]\n' for name, key in keys.items()))
    async with (
        world(keys_file=file) as w,
        async_client(w, keys["mills"]) as mills,
        async_client(w, keys["weir"]) as weir,
    ):
        begun = await mills.responses.create(model="bytes", input="x", background=True)
        for theirs in (weir.responses.retrieve, weir.responses.cancel, weir.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await theirs(begun.id)
        assert (await mills.responses.retrieve(begun.id)).id == begun.id
        async with httpx2.AsyncClient(base_url=f"http://{w.gateway.http}") as web:
            for method, path in (("POST", ""), ("GET", "/x"), ("POST", "/x/cancel"), ("DELETE", "/x")):
                assert (await web.request(method, f"/v1/responses{path}")).status_code == 401
        await w.idle()


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "role": "user", "content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "narrator", "content": "x"}]}, "input[0].role"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"store": True}, "store"),
        ({"background": True, "store": False}, "store"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"temperature": 1000}, "temperature"),
        ({"model": "tiny"}, "model"),
    ],
)
def test_what_is_wrong_with_a_response_is_named(web, given, param):
    answer = web.post("/v1/responses", json={"model": MODEL, "input": "x"} | given)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(("query", "param"), [("stream=maybe", "stream"), ("starting_after=-3", "starting_after")])
def test_what_is_wrong_with_a_retrieval_is_named(web, query, param):
    answer = web.get(f"/v1/responses/resp_x?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def async_client(w, key="none"):
    return openai.AsyncOpenAI(base_url=f"http://{w.gateway.http}/v1", api_key=key, max_retries=0)


async def _events_of(stream):
    return [event async for event in stream]
