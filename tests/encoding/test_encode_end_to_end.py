"""Embed, Rerank and Classify through every service, over sockets."""

import asyncio

import numpy as np
import pytest

from headrace.client import AsyncClient, Client
from headrace.core.errors import DeadlineMissed, InvalidRequest, ModelNotFound
from headrace.models import reference
from headrace.standalone.services import Service, Suite

TEXTS = ["a", "water wheel", "the river runs", "x" * 30, "y" * 61, "z" * 70, "longer and longer " * 6, "?"] * 2


def distance(one, other) -> float:
    return 1 - float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("int8", 2e-3), ("auto", 2e-3)])
async def test_vectors_are_those_of_the_models_forward_pass_in_numpy(suite, expected, precision, bound):
    async with suite("tiny", precision=precision) as running, AsyncClient(running.gateway) as client:
        embeddings = await client.embed("tiny", TEXTS)
    assert len(embeddings.vectors) == len(TEXTS)
    for text, vector in zip(TEXTS, embeddings.vectors, strict=True):
        assert distance(vector, expected(text)) < bound
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert embeddings.usage.prompt_tokens == sum(len(text) + 2 for text in TEXTS)
    if precision != "auto":
        assert embeddings.precision.name.lower() == precision


@pytest.mark.parametrize("precision", ["fp32", "int8", "auto"])
async def test_a_text_has_one_vector_whoever_else_is_in_the_batch(suite, precision):
    async with suite("tiny", precision=precision) as running, AsyncClient(running.gateway) as client:
        alone = [(await client.embed("tiny", text)).vectors[0] for text in TEXTS]
        for _ in range(3):
            beside = await asyncio.gather(*(client.embed("tiny", text) for text in TEXTS))
            assert [each.vectors[0] for each in beside] == alone
        together = await client.embed("tiny", TEXTS)
    assert list(together.vectors) == alone


async def test_pooling_length_and_dimensions_are_the_callers(suite, expected):
    async with suite("tiny", precision="fp32") as running, AsyncClient(running.gateway) as client:
        mean, cls, last, raw, short = [
            (await client.embed("tiny", "water wheel", **options)).vectors[0]
            for options in (
                {"pooling": "mean"},
                {"pooling": "cls"},
                {"pooling": "last"},
                {"normalize": False},
                {"dimensions": 8},
            )
        ]
        tokens = [0, *(2 + byte for byte in b"water wheel"), 1]
        assert (await client.embed("tiny", [tokens])).vectors[0] == mean
        with pytest.raises(InvalidRequest) as wide:
            await client.embed("tiny", "a", dimensions=33)
    for pooling, vector in (("mean", mean), ("cls", cls), ("last", last)):
        assert np.allclose(vector, expected("water wheel", pooling), atol=1e-5)
    assert distance(raw, mean) < 1e-6
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    assert len(short) == 8
    assert np.allclose(short, np.array(mean[:8]) / np.linalg.norm(mean[:8]), atol=1e-6)
    assert (wide.value.field, wide.value.limit) == ("dimensions", "1..32")


async def test_a_text_that_is_too_long_is_refused_or_cut(suite):
    async with suite("tiny") as running, AsyncClient(running.gateway) as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.embed("tiny", ["a", "b" * 127])
        cut = await client.embed("tiny", "b" * 200, truncate=True)
        whole = await client.embed("tiny", "b" * 126)
        with pytest.raises(InvalidRequest) as tokens:
            await client.embed("tiny", [[5] * 129])
    assert (refused.value.field, refused.value.limit) == ("texts[1]", "126 tokens")
    assert cut.vectors == whole.vectors
    assert cut.usage.prompt_tokens == 128
    assert tokens.value.field == "tokens[0].token_ids"


async def test_a_bi_encoder_reranks_by_cosine(suite, expected):
    documents = ["water mill", "zzzzzz", "water wheels"]
    async with suite("tiny", precision="fp32") as running, AsyncClient(running.gateway) as client:
        ranking = await client.rerank("tiny", "water wheel", documents)
        best = await client.rerank("tiny", "water wheel", documents, top_n=1)
        nothing = await client.rerank("tiny", "water wheel", [])
    scores = [float(expected("water wheel") @ expected(document)) for document in documents]
    assert [each.index for each in ranking.results] == sorted(range(3), key=lambda place: -scores[place])
    assert [each.score for each in ranking.results] == pytest.approx(sorted(scores, reverse=True), abs=1e-4)
    assert best.results == ranking.results[:1]
    assert nothing.results == ()


async def test_a_cross_encoder_reranks_by_its_score_of_the_pair(suite):
    documents = ["water mill", "zzzzzz", "water wheels"]
    async with suite("judge", precision="fp32") as running, AsyncClient(running.gateway) as client:
        ranking = await client.rerank("judge", "water wheel", documents)
        alone = [(await client.rerank("judge", "water wheel", [each])).results[0].score for each in documents]
        swapped = await client.rerank("judge", documents[0], ["water wheel"])
        cut = await client.rerank("judge", "water wheel", ["d" * 500], truncate=True)
        with pytest.raises(InvalidRequest):
            await client.rerank("judge", "q" * 500, ["d"], truncate=True)
        with pytest.raises(InvalidRequest) as vectors:
            await client.embed("judge", "a")
    assert [alone[each.index] for each in ranking.results] == [each.score for each in ranking.results]
    assert [each.score for each in ranking.results] == sorted(alone, reverse=True)
    assert swapped.results[0].score != alone[0]
    assert cut.usage.prompt_tokens == 128
    assert vectors.value.field == "model"


async def test_labels_have_probabilities(suite):
    async with suite("moods", precision="fp32") as running, AsyncClient(running.gateway) as client:
        labels = await client.classify("moods", ["rain", "sun"])
        best = await client.classify("moods", "sun", top_n=1)
        with pytest.raises(InvalidRequest) as reranked:
            await client.rerank("moods", "sun", ["rain"])
    for text in labels.results:
        assert {each.label for each in text} == {"sad", "calm", "glad"}
        assert sum(each.score for each in text) == pytest.approx(1, abs=1e-5)
        assert [each.score for each in text] == sorted((each.score for each in text), reverse=True)
    assert best.results[0] == labels.results[1][:1]
    assert reranked.value.field == "model"


async def test_what_cannot_be_served_is_refused_by_name(suite):
    async with suite("tiny") as running, AsyncClient(running.gateway) as client:
        with pytest.raises(InvalidRequest) as headless:
            await client.classify("tiny", "a")
        with pytest.raises(InvalidRequest) as decoder:
            await client.embed(reference.NAME, "a")
        with pytest.raises(InvalidRequest) as generates:
            await client.generate("tiny", "a")
        with pytest.raises(ModelNotFound):
            await client.embed("nobody", "a")
        with pytest.raises(InvalidRequest) as empty:
            await client.embed("tiny", ["a", ""])
        with pytest.raises(InvalidRequest) as nothing:
            await client.embed("tiny", [])
        with pytest.raises(InvalidRequest) as many:
            await client.embed("tiny", ["a"] * 1025)
    assert [each.value.field for each in (headless, decoder, generates)] == ["model"] * 3
    assert empty.value.field == "texts[1]"
    assert nothing.value.field == many.value.field == "texts"


async def until_nothing_is_held(running: Suite) -> None:
    in_use = running.handles[Service.GATEWAY].in_use
    async with asyncio.timeout(20):
        while True:
            held = in_use()
            if not (held.requests or held.tokens or held.num_bytes or held.waiting or held.running):
                return
            await asyncio.sleep(0.01)


async def test_nothing_is_held_after_calls_that_ended_early(suite):
    async with suite("tiny", straggler_ms=1) as running, AsyncClient(running.gateway) as client:
        with pytest.raises(DeadlineMissed):
            await client.embed("tiny", TEXTS * 60, timeout_s=0.02)
        calls = [asyncio.create_task(client.embed("tiny", TEXTS)) for _ in range(8)]
        await asyncio.sleep(0.02)
        for call in calls[1:]:
            call.cancel()
        whole = await calls[0]
        await asyncio.gather(*calls, return_exceptions=True)
        await until_nothing_is_held(running)
        again = await client.embed("tiny", TEXTS)
    assert again.vectors == whole.vectors


async def test_the_decoder_beside_it_still_generates(suite):
    async with suite("tiny") as running, AsyncClient(running.gateway) as client:
        answer, embeddings = await asyncio.gather(
            client.generate(reference.NAME, "abc", max_tokens=4), client.embed("tiny", "abc")
        )
        models = {model.name: model.ready for model in await client.models()}
    assert answer.usage.completion_tokens > 0
    assert len(embeddings.vectors) == 1
    assert models["tiny"]
    assert models[reference.NAME]


async def test_the_client_without_asyncio_calls_the_same(suite):
    async with suite("tiny") as running, AsyncClient(running.gateway) as client:
        wanted = await client.embed("tiny", TEXTS)

        def blocking() -> tuple[object, object]:
            with Client(running.gateway, tenant="mills") as plain:
                return plain.embed("tiny", TEXTS).vectors, plain.rerank("tiny", "a", ["b", "a"], top_n=1).results[
                    0
                ].index

        vectors, best = await asyncio.to_thread(blocking)
    assert vectors == wanted.vectors
    assert best == 1


@pytest.mark.parametrize("where", ["inline", "127.0.0.1:0"])
async def test_texts_may_be_prepared_elsewhere(suite, where):
    async with suite("judge", preprocess=where, precision="fp32") as running, AsyncClient(running.gateway) as client:
        assert (Service.PREPROCESS in running.addresses) == (where != "inline")
        ranking = await client.rerank("judge", "a", ["b", "c"])
        with pytest.raises(InvalidRequest) as refused:
            await client.classify("judge", ["a", "b" * 200])
    assert {each.index for each in ranking.results} == {0, 1}
    assert ranking.usage.prompt_tokens == 2 * 5
    assert (refused.value.field, refused.value.limit) == ("texts[1]", "126 tokens")
