"""A gateway for callers who have keys and no certificates: encrypted, known by its own certificate, clients all."""

from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from headrace.api.inference import inference_pb2, inference_pb2_grpc
from headrace.chassis.certificates import Certificates
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.credentials import client_context
from headrace.client import AsyncClient, Client, Tls
from headrace.client.scheduler_admin import SchedulerAdmin
from headrace.core.errors import Unauthenticated, Unavailable
from headrace.core.role import Role
from headrace.gateway.tenants.key import digest, new_key
from headrace.models import reference
from headrace.standalone.single import running

BOUND_S = 30
KEY = new_key()


async def test_keys_say_who_calls(tmp_path: Path, folder: Path, settings_of_suite: Any) -> None:
    keys_file = tmp_path / "keys.toml"
    keys_file.write_text(f'[tenant.mills]\nkey_sha256 = ["{digest(KEY)}"]\n')
    settings = settings_of_suite(
        tmp_path,
        folder,
        gateway={
            "listen": "127.0.0.1:0",
            "http_listen": "127.0.0.1:0",
            "preprocess": "127.0.0.1:0",
            "client_certificates": False,
        },
        tenants={"keys_file": keys_file},
    )
    by_role, by_host = Tls(ca=folder / "ca.crt"), Tls(ca=folder / "ca.crt", domain="")
    async with running(settings) as suite:
        for tls in (by_role, by_host):
            async with AsyncClient(suite.gateway, tls=tls, api_key=KEY, retries=0) as client:
                assert (await client.generate(reference.NAME, "hello", max_tokens=2)).usage.completion_tokens == 2
        async with AsyncClient(suite.gateway, tls=by_role, retries=0) as nobody:
            with pytest.raises(Unauthenticated):
                await nobody.models()
        async with AsyncClient(suite.gateway, tls=Tls(), api_key=KEY, retries=0) as by_the_systems_authorities:
            with pytest.raises(Unavailable):
                await by_the_systems_authorities.models()

        door: Any = suite.handles["gateway"]
        context = client_context(Certificates(by_role, server=False).current())
        async with httpx2.AsyncClient(base_url=f"https://{door.http}", verify=context, timeout=BOUND_S) as web:
            authorized = {"authorization": f"Bearer {KEY}"}
            assert (await web.get("/v1/models", headers=authorized)).status_code == 200
            assert (await web.get("/v1/models")).status_code == 401

        transport = TransportSettings(tls=by_role)
        async with open_channel(suite.gateway, transport, Role.GATEWAY) as channel:
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:  # an administrator's, and nobody here is one
                await stub.LogSettings(
                    inference_pb2.LogSettingsRequest(), metadata=(("authorization", f"Bearer {KEY}"),)
                )
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

        async with SchedulerAdmin(suite.addresses["scheduler"], transport) as admin:
            with pytest.raises(Unavailable):
                await admin.status()


def test_the_blocking_client_looks_for_the_gateways_name(suite: Any) -> None:
    with Client(suite.ports["gateway"], tls=Tls(dir=suite.folder), retries=0) as client:
        assert client.generate(reference.NAME, "hello", max_tokens=2).usage.completion_tokens == 2
    with Client(suite.ports["executor"], tls=Tls(dir=suite.folder), retries=0) as client, pytest.raises(Unavailable):
        client.models()
