"""Embeddings and reranking over HTTP."""

import numpy as np
import openai
import pytest

TEXTS = ["one mill", "two wheels and a much longer race"]


@pytest.mark.parametrize("encoding_format", ["float", "base64", None])
def test_vectors_are_those_of_grpc_bit_for_bit(client, grpc_client, encoding_format):
    theirs = grpc_client.embed("tiny", TEXTS)
    chosen = {"encoding_format": encoding_format} if encoding_format else {}
    ours = client.embeddings.create(model="tiny", input=TEXTS, **chosen)
    spelled = [each.embedding for each in ours.data]
    if encoding_format == "base64":  # asked for by name, the client hands it over as it came
        import base64

        spelled = [np.frombuffer(base64.b64decode(each), "<f4") for each in spelled]
    assert np.array_equal(np.array(spelled, np.float32), theirs.vectors)
    assert [each.index for each in ours.data] == [0, 1]
    assert ours.usage.prompt_tokens == ours.usage.total_tokens == theirs.usage.prompt_tokens


def test_one_text_token_ids_and_fewer_dimensions(client, grpc_client):
    (single,) = client.embeddings.create(model="tiny", input=TEXTS[0]).data
    ids = [0, *(byte + 2 for byte in TEXTS[0].encode()), 1]
    assert client.embeddings.create(model="tiny", input=ids).data[0].embedding == single.embedding
    assert client.embeddings.create(model="tiny", input=[ids, ids]).data[1].embedding == single.embedding
    short = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=8).data[0].embedding
    assert np.allclose(short, grpc_client.embed("tiny", TEXTS[:1], dimensions=8).vectors[0])
    assert len(short) == 8


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["good", ""]}, "input[1]"),
        ({"input": ["text", [1, 2]]}, "input"),
        ({"input": [[1], [10**6]]}, "input[1].token_ids"),
        ({"input": "x" * 1000}, "input[0]"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 10**6}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "model": "reference"}, "model"),
    ],
)
def test_what_is_wrong_with_an_embedding_is_named(web, given, param):
    answer = web.post("/v1/embeddings", json={"model": "tiny"} | given)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_long_text_is_cut_where_it_may_be(client):
    (whole,) = client.embeddings.create(model="tiny", input="x" * 1000, extra_body={"truncate": True}).data
    assert np.linalg.norm(whole.embedding) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": ["good", ""]}, "documents[1]"),
        ({"documents": [{"image": "x"}]}, "documents[0].text"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"),
    ],
)
def test_what_is_wrong_with_a_reranking_is_named(web, given, param):
    answer = web.post("/v1/rerank", json={"model": "tiny", "query": "q", "documents": ["d"]} | given)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_decoder_does_not_embed(client):
    with pytest.raises(openai.BadRequestError, match="does not encode"):
        client.embeddings.create(model="reference", input="x")


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_best_first(web, grpc_client, path):
    documents = ["a wheel", "the mill race", "nothing at all"]
    theirs = grpc_client.rerank("tiny", "mill", documents).results
    body = {"model": "tiny", "query": "mill", "documents": [documents[0], {"text": documents[1]}, documents[2]]}
    ours = web.post(path, json=body).json()
    assert [each["index"] for each in ours["results"]] == [each.index for each in theirs]
    assert [each["document"]["text"] for each in ours["results"]] == [documents[each.index] for each in theirs]
    scores = [each["relevance_score"] for each in ours["results"]]
    assert scores == pytest.approx([each.score for each in theirs])
    assert scores == sorted(scores, reverse=True)
    assert ours["usage"]["total_tokens"] > 0
    best = web.post(path, json=body | {"top_n": 1, "return_documents": False}).json()["results"]
    assert best == [{"index": theirs[0].index, "relevance_score": pytest.approx(theirs[0].score)}]
