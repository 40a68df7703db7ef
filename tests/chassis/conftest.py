"""A service made on the spot: handlers by name, over our server and a real socket."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import pytest

from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve

SERVICE = "test.v1.TestService"
TRANSPORT = TransportSettings(drain_s=20)

Serving = Callable[..., AbstractAsyncContextManager[grpc.aio.Channel]]


@pytest.fixture
def serving() -> Serving:
    """serving({method: handler}, transport): a channel to a server of ours with these handlers."""

    @asynccontextmanager
    async def start(
        handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"], transport: TransportSettings = TRANSPORT
    ) -> AsyncIterator[grpc.aio.Channel]:
        generic = grpc.method_handlers_generic_handler(SERVICE, dict(handlers))
        async with (
            serve(
                "127.0.0.1:0", transport, lambda server: server.add_generic_rpc_handlers((generic,)), [SERVICE]
            ) as handle,
            open_channel(handle.address, transport) as channel,
        ):
            yield channel

    return start
