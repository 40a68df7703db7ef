"""Keys and quotas over HTTP: what refuses a call, and what OpenAI's client makes of it."""

import asyncio

import httpx2
import openai
import pytest

from headrace.gateway.tenants.key import digest, new_key

MILLS, WEIR = new_key(), new_key()
FILE = f"""
[tenant.mills]
key_sha256 = ["{digest(MILLS)}"]
classes = ["normal"]
models = ["bytes"]
[tenant.weir]
key_sha256 = ["{digest(WEIR)}"]
max_requests = 1
"""
ASKED = {"model": "bytes", "prompt": "x"}


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    return path


def client_of(w, key, **options):
    return openai.AsyncOpenAI(base_url=f"http://{w.gateway.http}/v1", api_key=key, **{"max_retries": 0} | options)


async def test_a_key_says_who_calls_and_what_is_allowed(world, keys_file):
    async with world(keys_file=keys_file) as w, client_of(w, MILLS) as client:
        assert (await client.completions.create(**ASKED)).choices[0].text == "h"
        assert w.scheduler.submissions[0].tenant == "mills"
        assert [model.id async for model in client.models.list()] == ["bytes"]
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        with pytest.raises(openai.PermissionDeniedError) as other:
            await client.completions.create(**ASKED | {"model": "other"})
        assert (other.value.param, other.value.body["limit"]) == ("model", "bytes")
        with pytest.raises(openai.PermissionDeniedError) as urgent:
            await client.completions.create(**ASKED, extra_headers={"x-headrace-class": "realtime"})
        assert (urgent.value.param, urgent.value.body["limit"]) == ("x-headrace-class", "normal")
        with pytest.raises(openai.PermissionDeniedError):
            await client.completions.create(**ASKED, extra_headers={"x-headrace-tenant": "weir"})
        await w.idle()


@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer hr_wrong", f"Basic {MILLS}", "Bearer"],
    ids=["none", "wrong", "another scheme", "empty"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/bytes"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/rerank"),
    ],
)
async def test_without_a_key_nothing_is_said(world, keys_file, authorization, method, path):
    headers = {"authorization": authorization} if authorization else {}
    async with (
        world(keys_file=keys_file) as w,
        httpx2.AsyncClient(base_url=f"http://{w.gateway.http}", headers=headers) as web,
    ):
        answer = await web.request(method, path, content=b"no JSON" if method == "POST" else None)
        assert answer.status_code == 401
        error = answer.json()["error"]
        assert (error["type"], error["param"], error["code"]) == (
            "authentication_error",
            "authorization",
            "unauthenticated",
        )
        assert (await web.get("/health")).status_code == 200
        assert not w.scheduler.submissions


async def test_a_quota_says_when_to_come_back(world):
    quota = {"requests_per_minute": 2}
    async with world(default=quota) as w, client_of(w, "none") as client:
        for _ in range(2):
            await client.completions.create(**ASKED)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(**ASKED)
        headers, error = refused.value.response.headers, refused.value.body
        assert (error["code"], error["type"], error["limit"]) == (
            "tenant_over_limit",
            "rate_limit_error",
            "2 requests a minute",
        )
        assert 1 <= int(headers["retry-after"]) <= 121
        assert 0 < int(headers["retry-after-ms"]) <= 1000 * int(headers["retry-after"])
        await client.completions.create(**ASKED, extra_headers={"x-headrace-tenant": "another"})
        await w.idle()


async def test_the_client_comes_back_by_itself(world, keys_file, until):
    """The tenant's only place is free again once it has been refused for the first time."""
    free = asyncio.Event()

    async def held(member, send):
        await free.wait()
        send(member, token_ids=b"\x68\0\0\0", finish_reason="FINISH_REASON_STOP")

    async def look(response):
        statuses.append(response.status_code)
        if response.status_code == 429:
            free.set()

    statuses = []
    async with (
        world(keys_file=keys_file) as w,
        httpx2.AsyncClient(event_hooks={"response": [look]}) as web,
        client_of(w, WEIR, max_retries=20, http_client=web) as client,
    ):
        w.executor.script = held
        first = asyncio.create_task(client.completions.create(**ASKED))
        await until(lambda: w.executor.started)
        second = await client.completions.create(**ASKED)
        assert (await first).choices[0].text == second.choices[0].text == "h"
        assert statuses.count(200) == 2
        assert set(statuses) == {200, 429}


async def test_more_tokens_than_a_minute_has_are_no_quota_to_wait_for(world):
    async with world(default={"tokens_per_minute": 100}) as w, client_of(w, "none") as client:
        with pytest.raises(openai.BadRequestError) as hopeless:
            await client.completions.create(**ASKED, max_tokens=200)
        assert hopeless.value.body["limit"] == "100 tokens a minute"
        assert (await client.completions.create(**ASKED, max_tokens=50)).choices[0].text == "h"
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(**ASKED, max_tokens=60)
        assert refused.value.code == "tenant_over_limit"
