"""`headrace health`: whether a service is ready, by the standard gRPC health protocol; what a probe runs."""

import asyncio
from typing import Annotated

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.cli.reach import tls
from headrace.core.errors import NotFound, Unavailable
from headrace.core.role import Role


def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Any service's.")],
    service: Annotated[str, typer.Option(help="One service's full name; default: the server as a whole.")] = "",
    timeout_s: Annotated[float, typer.Option(min=0.1, max=600, help="Longest wait for the answer.")] = 5.0,
    peer: Annotated[
        Role | None, typer.Option("--of", help="With TLS, whose certificate must be there; default: the host's.")
    ] = None,
) -> None:
    """Exit code 0 where a service is ready, else 1 and why."""
    transport = TransportSettings(tls=tls(Role.PROBER))
    typer.echo(asyncio.run(status_of(address, service, timeout_s, transport, peer)))


async def status_of(
    address: str, service: str, timeout_s: float, transport: TransportSettings | None = None, peer: Role | None = None
) -> str:
    """`SERVING`. Raises Unavailable for anything else, NotFound where the server knows no such service."""
    async with open_channel(address, transport or TransportSettings(), peer) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
            answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            known = from_rpc_error(error)
            if isinstance(known, NotFound):
                raise known from error
            raise Unavailable(f"nothing answers at {address}") from error
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"{address} is {name}")
    return name
