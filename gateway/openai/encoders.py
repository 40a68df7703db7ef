"""Embeddings and reranking: bodies to the gateway's own Embed and Rerank, and their answers back."""

import base64
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest
from headrace.gateway.openai.body import Body, Prompts, UInt32, packed
from headrace.gateway.openai.headers import Asked


class EmbeddingBody(Body):
    """`truncate` is ours: longer texts are cut, not refused."""

    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: UInt32 | None = None
    truncate: bool = False
    user: str | None = None


class Document(Body):
    text: str


class RerankBody(Body):
    """The form of Jina and Cohere, as vLLM serves it."""

    model: str
    query: str
    documents: list[Annotated[Document, BeforeValidator(lambda given: {"text": given} if _is_text(given) else given)]]
    top_n: UInt32 | None = None
    return_documents: bool = True
    truncate: bool = False
    user: str | None = None


def _is_text(given: Any) -> bool:
    return isinstance(given, str)


def decode_embedding(body: EmbeddingBody, asked: Asked) -> gateway_pb2.EmbedRequest:
    """Raises InvalidRequest."""
    if body.dimensions == 0:
        raise InvalidRequest("dimensions is 0", field="dimensions", limit="1 at least, or left out")
    texts = [each for each in body.input if isinstance(each, str)]
    tokens = [each for each in body.input if not isinstance(each, str)]
    if texts and tokens:
        raise InvalidRequest("input mixes texts and token ids", field="input", limit="one of the two")
    return gateway_pb2.EmbedRequest(
        model=body.model,
        texts=texts,
        tokens=[gateway_pb2.TokenPrompt(token_ids=packed(each)) for each in tokens],
        dimensions=body.dimensions or 0,
        truncate=body.truncate,
        **asked.fields,
    )


def encode_embedding(body: EmbeddingBody, response: gateway_pb2.EmbedResponse) -> dict[str, Any]:
    """Base64 is of little-endian float32, as everywhere."""
    vectors = np.frombuffer(response.vectors, "<f4").reshape(-1, response.dimensions)
    if body.encoding_format == "base64":
        spelled: list[Any] = [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
    else:
        spelled = vectors.tolist()
    return {
        "object": "list",
        "model": body.model,
        "data": [{"object": "embedding", "index": place, "embedding": each} for place, each in enumerate(spelled)],
        "usage": _usage(response.usage),
    }


def decode_rerank(body: RerankBody, asked: Asked) -> gateway_pb2.RerankRequest:
    """Raises InvalidRequest."""
    if not body.documents:
        raise InvalidRequest("documents are missing", field="documents", limit="1 at least")
    if body.top_n == 0:
        raise InvalidRequest("top_n is 0", field="top_n", limit="1 at least, or left out")
    return gateway_pb2.RerankRequest(
        model=body.model,
        query=body.query,
        documents=[each.text for each in body.documents],
        top_n=body.top_n or 0,
        truncate=body.truncate,
        **asked.fields,
    )


def encode_rerank(body: RerankBody, response: gateway_pb2.RerankResponse) -> dict[str, Any]:
    results: list[dict[str, Any]] = [{"index": each.index, "relevance_score": each.score} for each in response.results]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": body.documents[result["index"]].text}
    return {
        "id": f"rerank-{response.request_id}",
        "model": body.model,
        "results": results,
        "usage": _usage(response.usage),
    }


def _usage(usage: types_pb2.Usage) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
