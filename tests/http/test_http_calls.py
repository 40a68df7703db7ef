"""What a call over HTTP is beside its answer: it can be left, run out of time, be traced, fail half-way, go unread."""

import asyncio
import json
import socket
from contextlib import aclosing, asynccontextmanager

import grpc
import httpx2
import openai
import pytest

from headrace.api.executor.v1 import executor_pb2
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.api.types.v1.types_pb2 import Fault
from headrace.chassis import signals
from headrace.chassis.config import load_settings
from headrace.models import reference
from headrace.standalone.services import Service
from headrace.standalone.single import running

H = b"\x68\0\0\0"
LONG = {"model": "bytes", "prompt": "long", "max_tokens": 4000}
UNREAD_S = 2
STEP_MS = 250
"""Long beside what a hang-up takes from the socket to the step loop, also on a busy machine."""
PIECE_BYTES = 2**14


@asynccontextmanager
async def openai_client(address, **options):
    async with openai.AsyncOpenAI(
        base_url=f"http://{address}/v1", **{"api_key": "none", "max_retries": 0} | options
    ) as client:
        yield client


@asynccontextmanager
async def plain(address):
    async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=60) as web:
        yield web


async def until_it_fails(client, asked):
    """The texts of a stream until it broke off, and what it failed with."""
    texts = []
    try:
        answer = await client.completions.create(**asked)
        async for chunk in answer:
            texts.append(chunk.choices[0].text)
    except openai.APIError as error:
        return texts, error
    pytest.fail("it was answered")


async def one_then_nothing(member, send):
    send(member, token_ids=H)
    await asyncio.Event().wait()


async def nothing(member, send):
    await asyncio.Event().wait()


async def test_the_engine_stops_within_a_step_of_a_hang_up(tmp_path, until):
    reference.install(tmp_path)
    anywhere = {"listen": "127.0.0.1:0"}
    executor = {**anywhere, "engine": "reference", "models": (reference.NAME,), "reference_step_ms": STEP_MS}
    sections = {
        "models": {"home": tmp_path},
        "gateway": {**anywhere, "http_listen": "127.0.0.1:0"},
        "scheduler": anywhere,
        "executor": executor,
    }
    async with (
        running(load_settings(None, sections)) as suite,
        openai_client(suite.handles["gateway"].http) as client,
        grpc.aio.insecure_channel(suite.addresses[Service.EXECUTOR]) as channel,
    ):
        status = ExecutorServiceStub(channel).GetStatus
        asked = {"model": reference.NAME, "prompt": "long", "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
        stream = await client.completions.create(**asked, stream=True)
        async with aclosing(aiter(stream)) as chunks:
            for _ in range(3):
                await anext(chunks)
        await stream.close()
        left = await status(executor_pb2.GetStatusRequest())
        assert left.num_running == 1
        while (now := await status(executor_pb2.GetStatusRequest())).num_running:
            assert now.num_steps <= left.num_steps + 2
            await asyncio.sleep(STEP_MS / 10_000)
        assert now.num_steps <= left.num_steps + 2, "the step that ran, and the one that saw it"
        assert now.num_blocks_in_use == now.num_slots_in_use == 0
        await until(lambda: suite.handles["gateway"].in_use().requests == 0)


@pytest.mark.parametrize("script", [one_then_nothing, nothing])
@pytest.mark.parametrize("stream", [True, False])
async def test_who_hangs_up_leaves_nothing(world, until, script, stream):
    async with world() as w, openai_client(w.gateway.http) as client:
        w.executor.script = script
        call = asyncio.create_task(client.completions.create(**LONG, n=2, stream=stream))
        await until(lambda: w.executor.started)
        if stream and script is one_then_nothing:
            await (await call).close()
        else:
            call.cancel()
        await until(lambda: w.executor.cancelled == list(w.executor.started))
        await w.idle()
        [span] = w.spans.get_finished_spans()
        assert span.attributes[signals.ERROR_TYPE] == "CANCELLED"


async def test_all_prompts_of_a_call_end_with_it(world, until):
    async with world() as w, openai_client(w.gateway.http) as client:
        w.executor.script = one_then_nothing
        call = asyncio.create_task(client.completions.create(**LONG | {"prompt": ["a", "b", "c"]}))
        await until(lambda: len(w.executor.started) == 3)
        call.cancel()
        await until(lambda: sorted(w.executor.cancelled) == sorted(w.executor.started))
        await w.idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_one_prompt_that_fails_ends_the_others(world, until, stream):
    async def one_fails(member, send):
        if member.token_ids[:1] == b"b":
            await until(lambda: len(w.executor.started) == 3)
            send(member, fault=Fault(reason="ENGINE_FAULT", message="it broke, incident 12"))
        else:
            await one_then_nothing(member, send)

    async with world() as w, openai_client(w.gateway.http) as client:
        w.executor.script = one_fails
        texts, failed = await until_it_fails(client, LONG | {"prompt": ["a", "b", "c"], "stream": stream})
        assert "it broke, incident 12" in failed.message
        if stream:
            assert set(texts) == {"h"}
        else:
            assert failed.status_code == 500
            assert failed.response.headers["x-should-retry"] == "false"
        await w.idle()


async def test_a_fault_within_a_stream_comes_in_openais_form(world):
    async def breaks(member, send):
        send(member, token_ids=H)
        send(member, fault=Fault(reason="ENGINE_FAULT", message="it broke, incident 12"))

    async with world() as w, plain(w.gateway.http) as web, openai_client(w.gateway.http) as client:
        w.executor.script = breaks
        answer = await web.post("/v1/completions", json=LONG | {"stream": True})
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert json.loads(events[0])["choices"][0]["text"] == "h"
        about = {"type": "server_error", "param": None, "code": "engine_fault"}
        assert [json.loads(events[1]), events[2:]] == [
            {"error": about | {"message": "it broke, incident 12"}},
            ["[DONE]"],
        ]
        texts, failed = await until_it_fails(client, LONG | {"stream": True})
        assert (texts, failed.code) == (["h"], "engine_fault")
        await w.idle()


async def test_a_deadline_ends_an_answer(world, until):
    soon = {"x-headrace-deadline-ms": "400"}
    async with world() as w, openai_client(w.gateway.http, max_retries=3) as client:
        w.executor.script = nothing
        _, late = await until_it_fails(client, LONG | {"extra_headers": soon})
        assert (late.status_code, late.code) == (504, "deadline_missed")
        w.executor.script = one_then_nothing
        texts, cut = await until_it_fails(client, LONG | {"extra_headers": soon, "stream": True})
        assert (texts, cut.code) == (["h"], "deadline_missed")
        await until(lambda: len(w.executor.cancelled) == 2)
        assert len(w.executor.started) == 2, "who is late is not asked for again"
        await w.idle()


@pytest.mark.parametrize("given", ["0", "-5", "1.5", "soon", "86400001", "٣"])
async def test_a_deadline_that_is_none_is_named(web, given):
    headers = {"x-headrace-deadline-ms": given.encode()}
    answer = web.post("/v1/completions", json={"model": "reference", "prompt": "x"}, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-headrace-deadline-ms"


async def test_a_client_that_gives_up_by_itself_leaves_nothing(world, until):
    async with world() as w, openai_client(w.gateway.http, timeout=0.5) as client:
        w.executor.script = nothing
        with pytest.raises(openai.APITimeoutError):
            await client.completions.create(**LONG)
        await until(lambda: len(w.executor.cancelled) == 1)
        await w.idle()


async def test_the_callers_trace_goes_on(world):
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with world() as w, openai_client(w.gateway.http) as client:
        headers = {"traceparent": f"00-{trace}-{parent}-01", "x-request-id": "mine"}
        answer = await client.completions.create(model="bytes", prompt="x", extra_headers=headers)
        [span] = w.spans.get_finished_spans()
        assert f"{span.context.trace_id:032x}" == trace
        assert f"{span.parent.span_id:016x}" == parent
        assert span.attributes[signals.REQUEST_ID] == answer._request_id
        assert answer._request_id.startswith("mine.")
        [submitted] = w.scheduler.submissions
        assert submitted.trace.traceparent.split("-")[1] == trace


def reads_little(address, body):
    """A connection that holds little and has asked; nothing of the answer is taken."""
    host, _, port = address.rpartition(":")
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((host, int(port)))
    data = json.dumps(body).encode()
    peer.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    return peer


async def test_a_reader_that_takes_nothing_is_cut_and_the_others_go_on(world, until):
    async def endless(member, send):
        """The slow one's pieces are big: some fill what the system holds for it."""
        num_pieces = member.sampling.max_tokens
        for number in range(num_pieces):
            end = "FINISH_REASON_LENGTH" if number == num_pieces - 1 else "FINISH_REASON_UNSPECIFIED"
            send(member, token_ids=H * (PIECE_BYTES if num_pieces > 20 else 1), finish_reason=end)
            await asyncio.sleep(0.005)

    async with world({"longest_unread_s": UNREAD_S}) as w, openai_client(w.gateway.http) as client:
        w.executor.script = endless
        with reads_little(w.gateway.http, LONG | {"stream": True}) as slow:
            await until(lambda: w.executor.started)
            [wire_id] = w.executor.started
            good = await asyncio.gather(
                *(client.completions.create(model="bytes", prompt="x", max_tokens=20) for _ in range(8))
            )
            assert [each.choices[0].text for each in good] == ["h" * 20] * 8
            await until(lambda: w.executor.cancelled == [wire_id])
            await w.idle()
            assert w.executor.steps[wire_id] < LONG["max_tokens"]
            slow.settimeout(60)
            taken = bytearray()
            while data := await asyncio.to_thread(_received, slow):
                taken += data
            assert b"[DONE]" not in taken
            assert len(taken) < 2**21, "only what sockets and the server's own buffer hold was sent to it"
        [span] = [each for each in w.spans.get_finished_spans() if each.attributes.get(signals.ERROR_TYPE)]
        assert span.attributes[signals.ERROR_TYPE] == "OVERLOADED"


def _received(peer):
    try:
        return peer.recv(2**16)
    except ConnectionResetError:
        return b""


async def test_a_body_that_does_not_come_is_not_waited_for(world):
    async with world({"longest_unread_s": 0.5}) as w:
        host, _, port = w.gateway.http.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 504 ")
        assert b'"param":"body"' in answer
