"""Keys: what the file may say, who a call comes from, and what its key allows."""

import asyncio
import os

import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TenantQuota, TenantsSettings, TransportSettings
from headrace.core.errors import ConfigError, InvalidRequest, PermissionDenied, Unauthenticated
from headrace.gateway.tenants.callers import Callers
from headrace.gateway.tenants.key import digest, new_key
from headrace.gateway.tenants.key_file import read_callers

MILLS, WEIR = new_key(), new_key()
FILE = f"""
[tenant.mills]
key_sha256 = ["{digest(MILLS)}"]
requests_per_minute = 7
classes = ["normal", "batch"]
models = ["bytes"]
[tenant.weir]
key_sha256 = ["{digest(WEIR)}"]
"""


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    return path


def bearer(key, **more):
    return tuple({"authorization": f"Bearer {key}", **more}.items())


def test_keys_are_random_and_of_one_form():
    assert MILLS != WEIR
    assert MILLS.startswith("hr_")
    assert len(MILLS) == len("hr_") + 43


def test_what_a_tenant_does_not_say_is_the_default(keys_file):
    callers = read_callers(keys_file, TenantQuota(requests_per_minute=3, max_requests=2)).by_digest
    assert callers[digest(MILLS)].quota == TenantQuota(requests_per_minute=7, max_requests=2)
    assert callers[digest(WEIR)].quota == TenantQuota(requests_per_minute=3, max_requests=2)


def test_all_faults_are_named_at_once_and_no_content(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f"""
    extra = 1
    [tenant."a b"]
    key_sha256 = ["{digest(MILLS)}"]
    [tenant.plain]
    key_sha256 = ["{MILLS}"]
    requests_per_minute = -1
    classes = ["vip"]
    burst = 3
    [tenant.twin]
    key_sha256 = ["{digest(MILLS)}"]
    [tenant.none]
    key_sha256 = []
    """)
    with pytest.raises(ConfigError) as refused:
        Callers(TenantsSettings(keys_file=path))
    for fault in (
        "extra",
        "tenant.a b",
        "tenant.plain.key_sha256.0",
        "requests_per_minute",
        "classes.0",
        "burst",
        "none.key_sha256",
        "share a key: a b and twin",
    ):
        assert fault in refused.value.message
    assert MILLS not in refused.value.message
    path.write_text("[tenant")
    with pytest.raises(ConfigError, match=r"keys\.toml"):
        Callers(TenantsSettings(keys_file=path))
    with pytest.raises(ConfigError, match="nowhere"):
        Callers(TenantsSettings(keys_file=tmp_path / "nowhere"))


def test_the_key_says_who_calls(keys_file):
    callers = Callers(TenantsSettings(keys_file=keys_file))
    assert callers.caller(bearer(MILLS)).tenant == "mills"
    assert callers.caller(bearer(WEIR, **{"x-headrace-tenant": "weir"})).tenant == "weir"
    for metadata in (
        (),
        bearer(new_key()),
        bearer(""),
        (("authorization", MILLS),),
        (("authorization", f"Basic {MILLS}"),),
        (("x-headrace-tenant", "mills"),),
    ):
        with pytest.raises(Unauthenticated) as refused:
            callers.caller(metadata)
        assert "hr_" not in str(refused.value)
    with pytest.raises(PermissionDenied) as denied:
        callers.caller(bearer(MILLS, **{"x-headrace-tenant": "weir"}))
    assert denied.value.field == "x-headrace-tenant"


def test_without_a_file_the_metadata_does(keys_file):
    callers = Callers(TenantsSettings(default=TenantQuota(max_requests=4)))
    assert callers.caller(()).tenant == "default"
    assert callers.caller((("x-headrace-tenant", "weir"),)).quota.max_requests == 4
    with pytest.raises(InvalidRequest):
        callers.caller((("x-headrace-tenant", "a b"),))


def replace(path, text):
    """As an editor does it: the new file is there whole, or not at all."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_a_changed_file_counts_and_a_faulty_one_does_not(keys_file, caplog):
    callers = Callers(TenantsSettings(keys_file=keys_file))
    later = new_key()
    replace(keys_file, f'[tenant.mills]\nkey_sha256 = ["{digest(later)}"]\n')
    callers.reload()
    assert callers.caller(bearer(later)).tenant == "mills"
    with pytest.raises(Unauthenticated):
        callers.caller(bearer(MILLS))
    replace(keys_file, '[tenant.mills]\nkeys = ["x"]\n')
    callers.reload()
    callers.reload()
    assert callers.caller(bearer(later)).tenant == "mills"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "tenant.mills.key_sha256" in caplog.text
    keys_file.unlink()
    callers.reload()
    assert callers.caller(bearer(later)).tenant == "mills"
    replace(keys_file, FILE)
    callers.reload()
    assert callers.caller(bearer(MILLS)).tenant == "mills"


async def test_every_method_asks_for_the_key(world, keys_file):
    calls = {
        "Generate": pb.GenerateRequest(model="bytes", text="x"),
        "Embed": pb.EmbedRequest(model="bytes"),
        "Rerank": pb.RerankRequest(model="bytes"),
        "Classify": pb.ClassifyRequest(model="bytes"),
        "AttachResult": pb.AttachResultRequest(handle="h"),
        "CancelResult": pb.CancelResultRequest(handle="h"),
        "ListResults": pb.ListResultsRequest(),
        "ListModels": pb.ListModelsRequest(),
    }
    service = pb.DESCRIPTOR.services_by_name["GatewayService"]
    assert calls.keys() == {method.name for method in service.methods}
    async with world(keys_file=keys_file) as w, open_channel(w.gateway.address, TransportSettings()) as channel:
        stub = GatewayServiceStub(channel)
        for name, request in calls.items():
            call = getattr(stub, name)(request)
            assert (await call.code()).name == "UNAUTHENTICATED", name


async def test_what_a_key_does_not_allow_is_refused_by_name(world, keys_file, caplog):
    async with world(keys_file=keys_file) as w:
        mills, weir = await w.client(api_key=MILLS), await w.client(api_key=WEIR)
        assert (await mills.generate("bytes", "x")).text == "h"
        assert w.scheduler.submissions[-1].tenant == "mills"
        with pytest.raises(PermissionDenied) as denied:
            await mills.generate("bytes", "x", qos="realtime")
        assert (denied.value.field, denied.value.limit) == ("qos_class", "batch, normal")
        with pytest.raises(PermissionDenied) as denied:
            await mills.generate("other", "x")
        assert (denied.value.field, denied.value.limit) == ("model", "bytes")
        assert [model.name for model in await mills.models()] == ["bytes"]
        assert [model.name for model in await weir.models()] == ["bytes", "other"]
        assert (await weir.generate("other", "x", qos="realtime")).text == "h"
        assert len(w.scheduler.submissions) == 2
        await w.idle()
        told = "".join(span.to_json() for span in w.spans.get_finished_spans()) + caplog.text
        assert MILLS not in told
        assert WEIR not in told


async def test_a_running_gateway_hears_of_new_keys(world, keys_file):
    later = new_key()
    async with world(keys_file=keys_file) as w:
        client = await w.client(api_key=later)
        with pytest.raises(Unauthenticated):
            await client.models()
        replace(keys_file, FILE + f'[tenant.late]\nkey_sha256 = ["{digest(later)}"]\n')
        async with asyncio.timeout(60):
            while True:
                try:
                    assert await client.models()
                    break
                except Unauthenticated:
                    await asyncio.sleep(0.05)
