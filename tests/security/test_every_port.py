"""Who is refused at every port of a real suite, and how: no certificate, a foreign, an expired or a wrong one."""

import asyncio
import http.client
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.chassis.certificates import Certificates
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TlsSettings, TransportSettings
from headrace.chassis.credentials import client_context
from headrace.cli.authority import Authority
from headrace.core.role import Role

BOUND_S = 20
HTTP = {"http": ("/v1/models", Role.CLIENT, Role.EXECUTOR), "metrics": ("/metrics", Role.PROBER, Role.CLIENT)}
"""Port -> path, a role that may, one that may not."""
GRPC = {
    "gateway": ("/headrace.gateway.v1.GatewayService/ListModels", Role.CLIENT, Role.EXECUTOR),
    "scheduler": ("/headrace.scheduler.v1.SchedulerAdminService/GetSettings", Role.ADMIN, Role.GATEWAY),
    "executor": ("/headrace.executor.v1.ExecutorService/GetStatus", Role.PROBER, Role.CLIENT),
    "preprocess": ("/headrace.preprocess.v1.PreprocessService/Screen", Role.GATEWAY, Role.CLIENT),
    "collector": ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", Role.SCHEDULER, Role.CLIENT),
}
PORTS = sorted({**HTTP, **GRPC})
REFUSED = "UNAVAILABLE"
"""What a call ends with that does not get through the handshake."""
STATUS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 200: "OK"}


async def call(port: str, address: str, tls: TlsSettings | None) -> str:
    """How a call of the port's method ends, by the name of its gRPC status, and its details."""
    if port in HTTP:
        return await asyncio.to_thread(_get, HTTP[port][0], address, tls)
    async with open_channel(address, TransportSettings(tls=tls)) as channel:
        try:
            await channel.unary_unary(GRPC[port][0])(b"", timeout=BOUND_S)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}"
    return "OK"


def _get(path: str, address: str, tls: TlsSettings | None) -> str:
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection(address, timeout=BOUND_S)
    else:
        context = client_context(Certificates(tls, server=False).current())
        connection = http.client.HTTPSConnection(address, timeout=BOUND_S, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return f"{STATUS[answer.status]} {answer.read().decode()}"
    except (OSError, http.client.HTTPException, ssl.SSLError) as error:
        return f"{REFUSED} {error}"
    finally:
        connection.close()


@pytest.fixture
def stranger(tmp_path: Path, suite: Any, write: Any) -> Callable[[str, Role], TlsSettings | None]:
    """The settings of a caller who should not get in, by what is wrong with it and the role that it would need."""

    def make(fault: str, role: Role) -> TlsSettings | None:
        (tmp_path / "ca.crt").write_bytes(suite.authority.pem)
        match fault:
            case "plain text":
                return None
            case "no certificate":
                return TlsSettings(ca=tmp_path / "ca.crt")
            case "foreign":
                made = write(tmp_path, "own", Authority("foreign", 1), role)
            case "expired":
                made = write(tmp_path, "own", suite.authority, role, ends_in=timedelta(seconds=-1))
            case "nobody":
                made = write(tmp_path, "own", suite.authority, None)
            case _:
                made = write(tmp_path, "own", suite.authority, role, domain="elsewhere")
        return TlsSettings.model_validate(made)

    return make


FAULTS = {
    "plain text": REFUSED,
    "no certificate": REFUSED,
    "foreign": REFUSED,
    "expired": REFUSED,
    "nobody": "UNAUTHENTICATED",
    "of another domain": "UNAUTHENTICATED",
}


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_strangers_are_refused(suite: Any, stranger: Any, port: str, fault: str) -> None:
    tls = stranger(fault, {**HTTP, **GRPC}[port][1])
    outcome = await call(port, suite.ports[port], tls)
    assert outcome.split()[0] == FAULTS[fault], outcome


@pytest.mark.parametrize("port", PORTS)
async def test_roles_decide(suite: Any, port: str) -> None:
    _, right, wrong = {**HTTP, **GRPC}[port]
    let_in, refused = [
        await call(port, suite.ports[port], TlsSettings(dir=suite.folder, role=role)) for role in (right, wrong)
    ]
    assert let_in.split()[0] in ("OK", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED"), let_in
    assert refused.split()[0] == "PERMISSION_DENIED", refused
    assert f"certificate of {wrong}" in refused
