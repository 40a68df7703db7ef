"""What a connection may take: metadata, streams and messages have bounds that the settings name."""

import asyncio
import http.client
from typing import Any

import grpc
import httpx2
import pytest

from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.models import reference

BOUND_S = 30
ANY_PORT = "127.0.0.1:0"
CALL = "/test.v1.TestService/Call"


def registering(handler: Any) -> Any:
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(handler)}
    generic = grpc.method_handlers_generic_handler("test.v1.TestService", handlers)
    return lambda server: server.add_generic_rpc_handlers((generic,))


async def echo(request: bytes, context: Any) -> bytes:
    return request


@pytest.mark.parametrize("limit", [4 * 2**10, 32 * 2**10])
async def test_metadata(limit: int) -> None:
    transport = TransportSettings(max_metadata_bytes=limit, drain_s=1)
    # a client without bounds of its own: the server's are what counts
    unbounded = [("grpc.absolute_max_metadata_size", 2**24), ("grpc.max_metadata_size", 2**24)]
    async with (
        serve(ANY_PORT, transport, registering(echo), []) as handle,
        grpc.aio.insecure_channel(handle.address, options=unbounded) as channel,
        asyncio.timeout(BOUND_S),
    ):
        call = channel.unary_unary(CALL)
        assert await call(b"x", metadata=(("padding", "p" * (limit - 1024)),)) == b"x"
        for _ in range(3):  # never by chance
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"x", metadata=(("padding", "p" * limit),))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_streams_of_a_connection() -> None:
    running, most, go_on = 0, 0, asyncio.Event()

    async def hold(request: bytes, context: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        return request

    transport = TransportSettings(max_streams=3, drain_s=5)
    async with (
        serve(ANY_PORT, transport, registering(hold), []) as handle,
        open_channel(handle.address, transport) as channel,
        asyncio.timeout(BOUND_S),
    ):
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        await channel.channel_ready()
        calls = [asyncio.ensure_future(channel.unary_unary(CALL)(bytes([n]))) for n in range(10)]
        while running < 3:  # noqa: ASYNC110 (the bound of the test's time ends it)
            await asyncio.sleep(0.01)
        # a connection of its own; by the time that it is answered, more than three could have come
        async with open_channel(handle.address, TransportSettings(drain_s=5)) as other:
            with pytest.raises(grpc.aio.AioRpcError) as unimplemented:
                await other.unary_unary("/test.v1.TestService/None")(b"")
            assert unimplemented.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert most == 3
        go_on.set()
        ended = await asyncio.gather(*calls, return_exceptions=True)
    answered = [each for each in ended if isinstance(each, bytes)]
    refused = [each.code().name for each in ended if isinstance(each, grpc.aio.AioRpcError)]
    assert len(answered) >= 3
    assert set(refused) <= {"UNAVAILABLE"}  # where the server's word came too late for the client to wait
    assert len(answered) + len(refused) == 10


@pytest.fixture
async def plain_suite(tmp_path: Any, settings_of_suite: Any) -> Any:
    from headrace.standalone.single import running

    settings = settings_of_suite(
        tmp_path, tmp_path, transport={"tls": None, "max_message_bytes": 65_536, "max_metadata_bytes": 8_192}
    )
    async with running(settings) as suite:
        yield suite


async def test_http_headers_and_bodies(plain_suite: Any) -> None:
    address = plain_suite.handles["gateway"].http

    def get(headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection(address, timeout=BOUND_S)
        try:
            connection.request("GET", "/v1/models", headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    assert await asyncio.to_thread(get, {"padding": "p" * 7_000}) == 200
    assert await asyncio.to_thread(get, {"padding": "p" * 70_000}) == 400
    async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=BOUND_S) as web:
        body = {"model": reference.NAME, "prompt": "p" * 65_536}
        refused = await web.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "body")
    assert "65536" in refused.json()["error"]["message"]
