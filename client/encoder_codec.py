"""Embed, Rerank and Classify between the client's values and the wire. Proto types end here."""

import struct
import sys
from array import array
from collections.abc import Sequence

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.client.codec import named, to_usage
from headrace.client.values import (
    Embeddings,
    EncodeOptions,
    Labels,
    LabelScore,
    PoolingName,
    Ranked,
    Ranking,
    Texts,
)
from headrace.core.errors import InvalidRequest
from headrace.core.request import Precision, QosClass


def encode_embed(
    model: str,
    texts: Texts,
    pooling: PoolingName | None,
    normalize: bool,
    dimensions: int,
    options: EncodeOptions,
) -> pb.EmbedRequest:
    """Raises InvalidRequest for values that the wire cannot hold; the gateway checks the rest."""
    request = pb.EmbedRequest(model=model, normalize=normalize, dimensions=dimensions)
    _put_options(request, options)
    if pooling is not None:
        known = [name.removeprefix("POOLING_").lower() for name in types_pb2.Pooling.keys()][1:]  # noqa: SIM118 - an enum wrapper is no mapping
        if pooling not in known:
            raise InvalidRequest(f"pooling {pooling!r} is unknown", field="pooling", limit=", ".join(known))
        request.pooling = types_pb2.Pooling.Value(f"POOLING_{pooling.upper()}")
    for place, each in enumerate([texts] if isinstance(texts, str) else texts):
        if isinstance(each, str):
            request.texts.append(each)
            continue
        try:
            request.tokens.add(token_ids=struct.pack(f"<{len(each)}I", *each))
        except struct.error as error:
            raise InvalidRequest(
                f"texts[{place}] is no text and no token ids: {error}", field=f"texts[{place}]", limit="uint32"
            ) from error
    return request


def encode_rerank(
    model: str, query: str, documents: Sequence[str], top_n: int, options: EncodeOptions
) -> pb.RerankRequest:
    request = pb.RerankRequest(model=model, query=query, documents=documents, top_n=top_n)
    _put_options(request, options)
    return request


def encode_classify(model: str, texts: str | Sequence[str], top_n: int, options: EncodeOptions) -> pb.ClassifyRequest:
    several = [texts] if isinstance(texts, str) else texts
    request = pb.ClassifyRequest(model=model, texts=several, top_n=top_n)
    _put_options(request, options)
    return request


def decode_embed(response: pb.EmbedResponse) -> Embeddings:
    whole = array("f", response.vectors)
    if sys.byteorder == "big":
        whole.byteswap()
    size = response.dimensions
    return Embeddings(
        request_id=response.request_id,
        vectors=tuple(whole[start : start + size] for start in range(0, len(whole), size or 1)),
        usage=to_usage(response.usage),
        precision=Precision(response.precision),
    )


def decode_rerank(response: pb.RerankResponse) -> Ranking:
    return Ranking(
        request_id=response.request_id,
        results=tuple(Ranked(each.index, each.score) for each in response.results),
        usage=to_usage(response.usage),
        precision=Precision(response.precision),
    )


def decode_classify(response: pb.ClassifyResponse) -> Labels:
    return Labels(
        request_id=response.request_id,
        results=tuple(tuple(LabelScore(each.label, each.score) for each in text.labels) for text in response.results),
        usage=to_usage(response.usage),
        precision=Precision(response.precision),
    )


def _put_options(request: pb.EmbedRequest | pb.RerankRequest | pb.ClassifyRequest, options: EncodeOptions) -> None:
    request.request_id = options.get("request_id") or ""
    request.truncate = options.get("truncate", False)
    request.qos_class = named(QosClass, "qos", options.get("qos", "normal")).value  # type: ignore[assignment]
    precision = options.get("precision") or Precision.ANY.name
    request.precision = named(Precision, "precision", precision).value  # type: ignore[assignment]
