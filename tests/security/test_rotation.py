"""Certificates that change while calls run: nothing breaks, and what is no longer trusted is refused from then on."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.chassis import certificates
from headrace.chassis.certificates import Certificates
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TlsSettings
from headrace.chassis.credentials import client_context
from headrace.chassis.renewing_channel import RenewingChannel
from headrace.chassis.server import serve
from headrace.cli import certs
from headrace.cli.authority import Authority
from headrace.client import AsyncClient
from headrace.core.role import Role
from headrace.models import reference
from headrace.standalone.single import running

BOUND_S = 60
ANY_PORT = "127.0.0.1:0"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 (nothing there could set an event)
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_S", 0.05)
    monkeypatch.setattr(certs, "KNOWN_AFTER_S", 0.3)


def shown(address: str, tls: TlsSettings) -> bytes:
    """The certificate that a port shows now."""
    host, _, port = address.rpartition(":")
    context = client_context(Certificates(tls, server=False).current())
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), BOUND_S) as raw,
        context.wrap_socket(raw, server_hostname=host) as it,
    ):
        return ssl.DER_cert_to_PEM_cert(it.getpeercert(binary_form=True) or b"").encode()


async def test_nothing_is_interrupted_under_load(tmp_path: Path, settings_of_suite: Any) -> None:
    folder, counts, failures = tmp_path / "tls", {"before": 0, "after": 0}, []
    certs.issue(folder, certs.LOOPBACK, 1, "headrace")
    tls, phase, over = TlsSettings(dir=folder), "before", asyncio.Event()
    before = (folder / "gateway.crt").read_bytes()
    slow = {"executor": {"listen": ANY_PORT, "engine": "reference", "models": ("reference",), "reference_step_ms": 5}}
    async with (
        running(settings_of_suite(tmp_path, folder, **slow)) as suite,
        AsyncClient(suite.gateway, tls=tls, retries=0) as client,
        asyncio.timeout(BOUND_S),
    ):
        long, began = [], asyncio.Event()

        async def one_long_answer() -> None:
            async for piece in client.stream(reference.NAME, "a long one", max_tokens=400, ignore_eos=True):
                long.append(piece)
                began.set()

        async def load() -> None:
            while not over.is_set():
                try:
                    await client.generate(reference.NAME, "hello", max_tokens=4)
                    counts[phase] += 1
                except Exception as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(one_long_answer())
            for _ in range(4):
                tasks.create_task(load())
            await began.wait()
            await asyncio.to_thread(certs.issue, folder, certs.LOOPBACK, 1, "headrace")
            after = (folder / "gateway.crt").read_bytes()
            await until(lambda: shown(suite.gateway, tls) == after)
            phase = "after"
            async with AsyncClient(suite.gateway, tls=tls, retries=0) as newcomer:
                await newcomer.generate(reference.NAME, "hello", max_tokens=4)
            await until(lambda: counts["after"] >= 20)
            over.set()
        door: Any = suite.handles["gateway"]
        assert await asyncio.to_thread(shown, door.http, tls) == after
    assert not failures
    assert before != after
    assert counts["before"] > 0
    assert long[-1].usage.completion_tokens == 400


@asynccontextmanager
async def health_server(transport: Any) -> AsyncIterator[str]:
    async with serve(ANY_PORT, transport, lambda server: None, []) as handle:
        await handle.set_ready(True)
        yield handle.address


async def check(channel: grpc.aio.Channel) -> str:
    try:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=BOUND_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_whom_nobody_trusts_any_more_gets_no_new_connection(
    tmp_path: Path, folder: Path, authority: Authority, write: Any, secure: Any
) -> None:
    old = write(tmp_path, "old", authority, Role.CLIENT)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    async with health_server(secure(folder, Role.GATEWAY)) as address:
        transport = secure(folder)
        async with open_channel(address, transport.model_copy(update={"tls": old})) as channel:
            assert await check(channel) == "OK"
            successor = Authority("successor", 1)
            for role in Role:
                write(folder, role, successor, role)
            (folder / "ca.crt").write_bytes(successor.pem)
            (tmp_path / "ca.crt").write_bytes(authority.pem + successor.pem)
            await asyncio.sleep(3 * certificates.LOOK_S)
        async with open_channel(address, transport) as channel:
            assert await check(channel) == "OK"
        async with open_channel(address, transport.model_copy(update={"tls": old})) as channel:
            assert await check(channel) == "UNAVAILABLE"


async def test_a_channel_takes_new_certificates_and_lets_running_calls_end(
    folder: Path, authority: Authority, write: Any, secure: Any
) -> None:
    async with health_server(secure(folder, Role.GATEWAY)) as address, asyncio.timeout(BOUND_S):
        opened: list[grpc.aio.Channel] = []
        tls = secure(folder).tls

        def open_with(pem: certificates.Pem) -> grpc.aio.Channel:
            options = [("grpc.use_local_subchannel_pool", 1)]
            credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
            opened.append(grpc.aio.secure_channel(address, credentials, options=options))
            return opened[-1]

        async with RenewingChannel(Certificates(tls, server=False), open_with) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            write(folder, "client", authority, Role.CLIENT)
            await asyncio.sleep(3 * certificates.LOOK_S)
            assert await check(channel) == "OK"
            assert len(opened) == 2
            first, second = (each.get_state() for each in opened)
            assert (first, second) == (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.READY)
            watch.cancel()
            await until(lambda: opened[0].get_state() is grpc.ChannelConnectivity.SHUTDOWN)
            assert await check(channel) == "OK"


async def test_a_server_of_another_role_is_not_spoken_to(folder: Path, secure: Any) -> None:
    async with health_server(secure(folder, Role.EXECUTOR)) as address:
        for peer, outcome in ((Role.EXECUTOR, "OK"), (None, "OK"), (Role.SCHEDULER, "UNAVAILABLE")):
            async with open_channel(address, secure(folder, Role.GATEWAY), peer) as channel:
                assert await check(channel) == outcome
