"""Waiting until a service answers SERVING by the standard health protocol."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.core.errors import Unavailable
from headrace.core.role import Role

START_S = 180.0
"""Longest wait for a service to be ready: models are compiled meanwhile."""


async def await_serving(address: str, transport: TransportSettings, bound_s: float, peer: Role | None = None) -> None:
    """Returns once the server at `address` is SERVING; with TLS only that of a `peer`. Raises Unavailable after
    `bound_s`."""
    try:
        async with asyncio.timeout(bound_s), open_channel(address, transport, peer) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                if await _watch(stub):
                    return
                await asyncio.sleep(0.05)  # the server went while it was watched: look again
    except TimeoutError as error:
        raise Unavailable(f"{address} was not ready within {bound_s:g} s") from error


async def _watch(stub: health_pb2_grpc.HealthStub) -> bool:
    """True once SERVING; False where the stream ended before."""
    try:
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):  # type: ignore[attr-defined]
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    except grpc.aio.AioRpcError:
        pass
    return False
