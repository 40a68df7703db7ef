"""The gateway leaves: what runs is finished or ends with a word, what is new is refused, connections end well."""

import asyncio
import json

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from headrace.gateway.openai.exchange import Endpoint
from headrace.gateway.openai.leaving import Leaving
from headrace.gateway.openai.server import serving

H = b"\x68\0\0\0"
ASKED = {"model": "bytes", "prompt": "x", "max_tokens": 50}


async def opened(address, stream):
    """A connection on which a completion has been asked for."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(ASKED | {"stream": stream}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_runs_is_finished_and_idle_connections_close(world, until, stream):
    leaving = asyncio.Event()

    async def slow(member, send):
        send(member, token_ids=H)
        await leaving.wait()
        send(member, token_ids=H, finish_reason="FINISH_REASON_STOP")

    async with asyncio.timeout(60):
        async with world(drain_s=30) as w:
            w.executor.script = slow
            reader, writer = await opened(w.gateway.http, stream)
            host, _, port = w.gateway.http.rpartition(":")
            idle, idle_writer = await asyncio.open_connection(host, int(port))
            await until(lambda: w.executor.started)
            address = w.gateway.http

            async def after_it_began():
                assert await idle.read() == b""  # closed, though it never asked for anything
                leaving.set()
                return await reader.read()  # to the connection's end

            answering = asyncio.create_task(after_it_began())
        text = (await answering).decode()
    assert text.startswith("HTTP/1.1 200 OK")
    assert '"finish_reason":"stop"' in text
    assert "error" not in text
    if stream:
        assert "data: [DONE]" in text
    for each in (writer, idle_writer):
        each.close()
    async with httpx2.AsyncClient(base_url=f"http://{address}") as web:
        with pytest.raises(httpx2.ConnectError):
            await web.get("/health")


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_not_done_in_time_ends_with_a_word(world, until, stream):
    async def never_done(member, send):
        send(member, token_ids=H)
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        async with world() as w:
            w.executor.script = never_done
            reader, writer = await opened(w.gateway.http, stream)
            await until(lambda: w.executor.steps)
            answering = asyncio.create_task(reader.read())
        text = (await answering).decode()
    writer.close()
    assert '"code":"draining"' in text
    if stream:
        assert text.startswith("HTTP/1.1 200 OK")
        assert text.index('"text":"h"') < text.index('"error"') < text.index("data: [DONE]")
    else:
        assert text.startswith("HTTP/1.1 503 ")


async def test_a_request_that_comes_while_it_leaves_is_refused():
    """Until its connection is closed, which is a moment later."""

    async def answer(exchange):
        await exchange.reply({})

    leaving = Leaving()
    application = Starlette(routes=[Route("/", Endpoint(answer, leaving, 2**20, 2**14, 30), methods=["POST"])])
    async with (
        serving(application, "127.0.0.1:0", leaving, 30, 1) as door,
        httpx2.AsyncClient(base_url=f"http://{door.address}", timeout=60) as web,
    ):
        assert (await web.post("/")).status_code == 200
        leaving.begin(30)
        refused = await web.post("/")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
