"""The server that every service stands on: binding, health, reflection, silence, drain."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.api.gateway.v1.gateway_pb2 import DESCRIPTOR as GATEWAY
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceServicer, add_GatewayServiceServicer_to_server
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.server import ServerHandle, serve
from headrace.core.errors import ConfigError

SERVICE = GATEWAY.services_by_name["GatewayService"].full_name
TRANSPORT = TransportSettings(drain_s=20)
BOUND_S = 30
CALL = "/test.v1.TestService/Call"


def register(server: grpc.aio.Server) -> None:
    add_GatewayServiceServicer_to_server(GatewayServiceServicer(), server)


@pytest.fixture
async def server() -> AsyncIterator[ServerHandle]:
    async with serve("127.0.0.1:0", TRANSPORT, register, [SERVICE]) as handle:
        yield handle


@pytest.fixture
async def channel(server: ServerHandle) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(server.address, TRANSPORT) as channel:
        yield channel


async def test_port_zero_is_a_port_of_the_systems_choice(server: ServerHandle) -> None:
    host, _, port = server.address.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


@pytest.mark.parametrize("address", ["{taken}", "203.0.113.1:0", "nobody.invalid:0"])
async def test_an_address_that_is_not_to_be_had(server: ServerHandle, address: str) -> None:
    address = address.format(taken=server.address)
    with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
        async with serve(address, TRANSPORT, register, [SERVICE]):
            pass


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_check_follows_readiness(server: ServerHandle, channel: grpc.aio.Channel, name: str) -> None:
    stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest(service=name)
    seen = [(await stub.Check(request)).status]
    for ready in (True, False, True):
        await server.set_ready(ready)
        seen.append((await stub.Check(request)).status)
    down, up = health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING
    assert seen == [down, up, down, up]


async def test_check_of_an_unknown_service_is_not_found(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_watch_tells_each_change(server: ServerHandle, channel: grpc.aio.Channel, name: str) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))
    seen = []
    async with asyncio.timeout(BOUND_S):
        for ready in (True, False, None):
            seen.append((await watch.read()).status)
            if ready is not None:
                await server.set_ready(ready)
    watch.cancel()
    down, up = health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING
    assert seen == [down, up, down]


async def test_a_watcher_that_leaves_does_not_blind_another(server: ServerHandle, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    leaves, stays = (stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE)) for _ in range(2))
    async with asyncio.timeout(BOUND_S):
        for watch in (leaves, stays):
            await watch.read()
        leaves.cancel()
        for _ in range(20):  # by the time that these are answered, the server has heard of the cancel
            await stub.Check(health_pb2.HealthCheckRequest())
        await server.set_ready(True)
        assert (await stays.read()).status == health_pb2.HealthCheckResponse.SERVING
    stays.cancel()


async def test_watch_of_an_unknown_service(channel: grpc.aio.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nobody"))
    async with asyncio.timeout(BOUND_S):
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


async def test_leaving_ends_every_watch() -> None:
    seen: list[int] = []
    first = asyncio.Event()

    async def follow(watch: AsyncIterator[health_pb2.HealthCheckResponse]) -> None:
        # Always reading, as a real watcher is: gRPC may drop a message that waits unread as its connection ends.
        async for answer in watch:
            seen.append(answer.status)
            first.set()

    async with (
        AsyncExitStack() as stack,
        asyncio.timeout(TRANSPORT.drain_s / 2),
        asyncio.TaskGroup() as followers,
        serve("127.0.0.1:0", TRANSPORT, register, [SERVICE]) as handle,
    ):
        await handle.set_ready(True)
        channel = await stack.enter_async_context(open_channel(handle.address, TRANSPORT))
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        followers.create_task(follow(aiter(watch)))
        await first.wait()
    assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


async def test_reflection_lists_and_describes_the_services(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    listed, described = [response async for response in stub.ServerReflectionInfo(iter(requests))]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert any(b"GenerateRequest" in file for file in described.file_descriptor_response.file_descriptor_proto)


async def test_a_call_may_be_silent_for_many_keepalive_periods(serving: Any) -> None:
    # A server with gRPC's own settings ends such a call with too_many_pings at the fifth period.
    transport = TransportSettings(keepalive_ms=1_000, drain_s=20)

    async def answer_late(request: bytes, context: object) -> bytes:
        await asyncio.sleep(6)
        return b"late"

    async def stream_late(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        yield b"early"
        yield await answer_late(b"", context)

    handlers = {
        "Call": grpc.unary_unary_rpc_method_handler(answer_late),
        "Stream": grpc.stream_stream_rpc_method_handler(stream_late),
    }
    async with serving(handlers, transport) as channel, asyncio.timeout(BOUND_S):
        stream = channel.stream_stream("/test.v1.TestService/Stream")()
        assert await stream.read() == b"early"
        assert await channel.unary_unary(CALL)(b"") == b"late"
        assert await stream.read() == b"late"


async def ask_until_refused(channel: grpc.aio.Channel) -> None:
    while True:  # until the server has begun to leave, health still answers
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())


async def test_leaving_waits_for_running_calls_and_takes_no_new_ones() -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def call(request: bytes, context: object) -> bytes:
        started.set()
        await finish.wait()
        return b"done"

    generic = grpc.method_handlers_generic_handler(
        "test.v1.TestService", {"Call": grpc.unary_unary_rpc_method_handler(call)}
    )
    stop = asyncio.Event()

    async def run(address: "asyncio.Future[str]") -> None:
        async with serve("127.0.0.1:0", TRANSPORT, lambda s: s.add_generic_rpc_handlers((generic,)), []) as handle:
            address.set_result(handle.address)
            await stop.wait()

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        leaving = tasks.create_task(run(address))
        async with open_channel(await address, TRANSPORT) as channel:
            running = channel.unary_unary(CALL)(b"")
            await started.wait()
            stop.set()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask_until_refused(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert not leaving.done()
            finish.set()
            assert await running == b"done"
        await leaving


async def test_leaving_does_not_wait_for_ever() -> None:
    started = asyncio.Event()

    async def call(request: bytes, context: object) -> bytes:
        started.set()
        await asyncio.Event().wait()
        return b""

    generic = grpc.method_handlers_generic_handler(
        "test.v1.TestService", {"Call": grpc.unary_unary_rpc_method_handler(call)}
    )
    transport = TransportSettings(drain_s=0.05)
    async with asyncio.timeout(BOUND_S):
        async with serve("127.0.0.1:0", transport, lambda s: s.add_generic_rpc_handlers((generic,)), []) as handle:
            channel = open_channel(handle.address, transport)
            running = asyncio.ensure_future(channel.unary_unary(CALL)(b""))
            await started.wait()
        with pytest.raises(grpc.aio.AioRpcError):
            await running
        await channel.close()


async def test_a_message_over_the_bound_is_refused_on_the_way(serving: Any) -> None:
    async def call(request: bytes, context: object) -> bytes:
        return request

    handlers = {"Call": grpc.unary_unary_rpc_method_handler(call)}
    async with serving(handlers, TransportSettings(max_message_bytes=1024, drain_s=20)) as channel:
        assert await channel.unary_unary(CALL)(bytes(1024)) == bytes(1024)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(CALL)(bytes(1025))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
