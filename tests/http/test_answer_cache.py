"""The answer cache, over gRPC and HTTP: what is the same is made once, what may differ is made again."""

import asyncio
from dataclasses import replace

import openai
import pytest

from headrace.api.types.v1.types_pb2 import Fault, Logprobs, TokenLogprob
from headrace.core.request import FinishReason, Precision
from headrace.core.screening import Verdict
from headrace.gateway.cache.whole import Whole
from headrace.gateway.generation import Piece, Usage

ASKED = {"max_tokens": 8, "cacheable": True}
USE = {"x-headrace-cache": "use"}


@pytest.fixture(params=["sqlite", "redis"])
def store(request, tmp_path, redis_server):
    if request.param == "sqlite":
        yield str(tmp_path / "answers.db")
        return
    with redis_server(tmp_path) as port:
        yield f"redis://127.0.0.1:{port}"


@pytest.fixture
def cached(world, tmp_path, monkeypatch):
    """`cached(ttl_s=…, store=…)`: a world whose gateway has a cache."""

    def make(tenants=None, **settings):
        given = {"enabled": "true", "store": str(tmp_path / "answers.db")} | settings
        for name, value in given.items():
            monkeypatch.setenv(f"HEADRACE_CACHE__{name.upper()}", str(value))
        return world(**(tenants or {}))

    return make


async def numbered(member, send):
    """Three pieces that say how many requests there were before, with log probabilities."""
    mark = ord("a") + numbered.count
    numbered.count += 1
    for place in range(3):
        for index in range(member.sampling.n or 1):
            send(
                member,
                index=index,
                token_ids=(mark + index).to_bytes(4, "little"),
                logprobs=[Logprobs(chosen=TokenLogprob(token_id=mark, logprob=-place - 0.25))]
                if member.sampling.HasField("logprobs")
                else [],
                finish_reason="FINISH_REASON_LENGTH" if place == 2 else "FINISH_REASON_UNSPECIFIED",
                cached_prompt_tokens=1,
            )


@pytest.fixture(autouse=True)
def count():
    numbered.count = 0


async def found(ask):
    """What `ask` gives once it is from the cache: an answer is kept behind the call's back."""
    async with asyncio.timeout(60):
        while not (answer := await ask())[0].from_cache:  # noqa: ASYNC110 (nothing there could set an event)
            await asyncio.sleep(0.01)
    return answer


async def test_the_same_is_answered_as_before(cached, store):
    async with cached(store=store) as w:
        w.executor.script = numbered
        client = await w.client()

        async def ask(**more):
            answers = await client.generate("bytes", "x", **ASKED | {"n": 2, "logprobs": 0} | more)
            if not answers[0].from_cache:
                fresh.append([replace(each, request_id="", from_cache=True) for each in answers])
            return answers

        fresh = []
        again = await found(ask)
        made = numbered.count
        assert [replace(each, request_id="") for each in again] in fresh
        urgent = await ask(request_id="mine", qos="realtime", sla_total_ms=60_000)
        assert (urgent[0].from_cache, urgent[0].request_id, numbered.count) == (True, "mine", made)
        assert urgent[0].token_ids == again[0].token_ids
        await w.idle()
    async with cached(store=store) as w:  # another gateway of the same store
        w.executor.script = numbered
        client = await w.client()
        assert (await ask())[0].token_ids == again[0].token_ids
        assert numbered.count == made


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "y"},
        {"prompt": [ord("x")]},
        {"model": "other"},
        {"max_tokens": 9},
        {"stop": ["x"]},
        {"n": 2},
        {"logprobs": 1},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 1.0},
        {"precision": "fp32"},
        {"ignore_eos": True},
        {"cacheable": False},
        {"tenant": "weir"},
    ],
    ids=str,
)
async def test_what_may_be_answered_otherwise_is_made(cached, other):
    async with cached() as w:
        w.executor.script = numbered
        client = await w.client(tenant=other.pop("tenant", "mills"))
        same = {"model": "bytes", "prompt": "x", "n": 1} | ASKED
        mills = await w.client(tenant="mills")
        await found(lambda: mills.generate(**same))
        made = numbered.count
        answer = await client.generate(**same | other)
        assert not answer[0].from_cache
        assert numbered.count == made + 1


async def test_what_is_drawn_is_found_again_by_its_seed_only(cached):
    async with cached() as w:
        w.executor.script = numbered
        client = await w.client()
        drawn = {"n": 1, "temperature": 1.0} | ASKED
        await found(lambda: client.generate("bytes", "x", seed=5, **drawn))
        made = numbered.count
        for _ in range(3):
            assert not (await client.generate("bytes", "x", **drawn))[0].from_cache
        assert (await client.generate("bytes", "x", seed=5, **drawn))[0].from_cache
        assert numbered.count == made + 3


async def test_both_doors_share_it_and_a_stream_is_told(cached):
    async with (
        cached() as w,
        openai.AsyncOpenAI(base_url=f"http://{w.gateway.http}/v1", api_key="none", max_retries=0) as client,
    ):
        w.executor.script = numbered
        grpc = await w.client()
        [answer] = await found(lambda: grpc.generate("bytes", "x", n=1, temperature=0, **ASKED))
        made = numbered.count
        asked = {"model": "bytes", "prompt": "x", "n": 1, "temperature": 0, "max_tokens": 8}
        raw = await client.completions.with_raw_response.create(**asked, extra_headers=USE)
        assert raw.parse().choices[0].text == answer.text
        assert raw.headers["x-headrace-cache"] == "hit"
        stream = await client.completions.create(**asked, stream=True, extra_headers=USE)
        assert stream.response.headers["x-headrace-cache"] == "hit"
        assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.text
        assert numbered.count == made
        raw = await client.completions.with_raw_response.create(**asked)
        assert "x-headrace-cache" not in raw.headers
        assert numbered.count == made + 1
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.completions.create(**asked, extra_headers={"x-headrace-cache": "perhaps"})
        assert wrong.value.param == "x-headrace-cache"


async def test_what_failed_or_is_too_long_is_not_kept(cached):
    async def breaks(member, send):
        send(member, token_ids=b"\x68\0\0\0")
        send(member, fault=Fault(reason="ENGINE_FAULT", message="it broke"))

    async with cached(max_answer_bytes=10) as w:
        client = await w.client()
        for script in (breaks, numbered):
            w.executor.script = script
            for _ in range(3):
                outcome = await asyncio.gather(client.generate("bytes", "x", n=1, **ASKED), return_exceptions=True)
                assert isinstance(outcome[0], Exception) or not outcome[0][0].from_cache
        assert numbered.count == 3


async def test_the_oldest_goes_where_a_bound_is_reached(cached):
    async with cached(max_answers=2) as w:
        w.executor.script = numbered
        client = await w.client()
        for prompt in "abc":
            await found(lambda prompt=prompt: client.generate("bytes", prompt, n=1, **ASKED))
        assert (await client.generate("bytes", "c", n=1, **ASKED))[0].from_cache
        assert not (await client.generate("bytes", "a", n=1, **ASKED))[0].from_cache


async def test_it_expires(cached):
    async with cached(ttl_s=0.3) as w:
        w.executor.script = numbered
        client = await w.client()
        await found(lambda: client.generate("bytes", "x", n=1, **ASKED))
        async with asyncio.timeout(60):
            while (await client.generate("bytes", "x", n=1, **ASKED))[0].from_cache:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_without_its_store_answers_are_made(cached, tmp_path):
    async with cached(store=tmp_path) as w:  # a folder is no file of SQLite's
        w.executor.script = numbered
        client = await w.client()
        for number in range(3):
            [answer] = await client.generate("bytes", "x", n=1, **ASKED)
            assert answer.text == chr(ord("a") + number) * 3


async def test_it_is_off_unless_the_gateway_has_one(cached, tmp_path):
    async with cached(enabled="false") as w:
        w.executor.script = numbered
        client = await w.client()
        for number in range(2):
            [answer] = await client.generate("bytes", "x", n=1, **ASKED)
            assert answer.text == chr(ord("a") + number) * 3
        assert not (tmp_path / "answers.db").exists()


@pytest.mark.parametrize("flagged", [True, False])
def test_a_marked_answer_is_let_go(flagged):
    whole = Whole(1, 100)
    whole.add(Piece(0, "he", b"\1\0\0\0", (), FinishReason.NONE, Precision.INT8))
    assert whole.pieces() is None
    verdict = Verdict("harm", 0.9, "screen") if flagged else None
    whole.add(Piece(0, "y", b"\2\0\0\0", (), FinishReason.STOP, usage=Usage(1, 2, 0), screen=verdict))
    made = whole.pieces()
    if flagged:
        assert made is None
    else:
        expected = Piece(0, "hey", b"\1\0\0\0\2\0\0\0", [], FinishReason.STOP, Precision.INT8, Usage(1, 2, 0))
        assert made == [expected]
