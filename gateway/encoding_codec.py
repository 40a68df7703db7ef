"""Embed, Rerank and Classify messages to and from the gateway's values. All that is wrong with one is said here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest
from headrace.core.model import ModelInfo
from headrace.core.request import Precision, QosClass
from headrace.gateway.codec import enum_of, model_of, token_ids_of
from headrace.gateway.encoding import Readout
from headrace.gateway.ports import EncoderText, TextModels

MAX_TEXTS = 1024
"""Of one call; more go in several."""

Request = pb.EmbedRequest | pb.RerankRequest | pb.ClassifyRequest
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncodeWish:
    """A valid call: texts still to be tokenised, or token ids already, and what is wanted of each."""

    request_id: str
    model: ModelInfo
    texts: Sequence[EncoderText]
    token_ids: Sequence[NDArray[np.uint32]]
    truncate: bool
    readout: Readout
    qos: QosClass
    precision: Precision

    @property
    def num_texts(self) -> int:
        return len(self.texts) + len(self.token_ids)


def decode_embed(request: pb.EmbedRequest, request_id: str, texts: TextModels) -> EncodeWish:
    """Raises InvalidRequest, naming the field and its limit, or ModelNotFound."""
    model = model_of(request.model, texts, "encoder")
    if bool(request.texts) == bool(request.tokens):
        raise InvalidRequest("texts or tokens are needed, and not both", field="texts", limit="texts or tokens")
    if request.pooling not in types_pb2.Pooling.values():
        known = ", ".join(types_pb2.Pooling.keys())
        raise InvalidRequest(
            f"pooling {request.pooling} is unknown, must be one of {known}", field="pooling", limit=known
        )
    readout = Readout(
        pooling=request.pooling,
        normalize=request.normalize if request.HasField("normalize") else True,
        dimensions=request.dimensions,
    )
    token_ids = [
        token_ids_of(prompt.token_ids, f"tokens[{place}].token_ids", model)
        for place, prompt in enumerate(request.tokens)
    ]
    for place, each in enumerate(token_ids):
        if len(each) > model.context_tokens:
            raise InvalidRequest(
                f"tokens[{place}] has {len(each)}, the model's context is {model.context_tokens}",
                field=f"tokens[{place}].token_ids",
                limit=f"{model.context_tokens} tokens",
            )
    return _wish(request, request_id, model, _plain(request.texts), token_ids, readout)


def decode_rerank(request: pb.RerankRequest, request_id: str, texts: TextModels) -> EncodeWish:
    """With a model that scores, the pairs of query and each document; else the query's text and then the documents'."""
    model = model_of(request.model, texts, "encoder")
    if not request.query:
        raise InvalidRequest("query is empty", field="query", limit="1 character at least")
    documents = _plain(request.documents, "documents")
    if model.labels:
        if len(model.labels) != 1:
            raise InvalidRequest(
                f"model {model.name!r} classifies by {len(model.labels)} labels and does not rerank",
                field="model",
                limit="an encoder, or a model with one score",
            )
        pairs = [EncoderText(request.query, document.text) for document in documents]
        return _wish(request, request_id, model, pairs, [], Readout(scores=True))
    return _wish(request, request_id, model, [EncoderText(request.query), *documents], [], Readout())


def decode_classify(request: pb.ClassifyRequest, request_id: str, texts: TextModels) -> EncodeWish:
    """Raises InvalidRequest where the model has no classification head."""
    model = model_of(request.model, texts, "encoder")
    if not model.labels:
        raise InvalidRequest(
            f"model {model.name!r} gives vectors and has no classification head",
            field="model",
            limit="a model with labels",
        )
    return _wish(request, request_id, model, _plain(request.texts), [], Readout(scores=True))


def encode_embed(
    wish: EncodeWish, vectors: Sequence[Float32], prompt_tokens: int, precision: Precision
) -> pb.EmbedResponse:
    return pb.EmbedResponse(
        request_id=wish.request_id,
        dimensions=len(vectors[0]),
        vectors=np.stack(vectors).astype("<f4", copy=False).tobytes(),
        usage=types_pb2.Usage(prompt_tokens=prompt_tokens),
        precision=int(precision),  # type: ignore[arg-type]
    )


def encode_rerank(
    wish: EncodeWish, top_n: int, values: Sequence[Float32], prompt_tokens: int, precision: Precision
) -> pb.RerankResponse:
    """Scores are the model's own, or the cosine of query and document."""
    if wish.readout.scores:
        scores = [float(each[0]) for each in values]
    else:
        query, *documents = values
        scores = [float(query @ document) for document in documents]
    order = sorted(range(len(scores)), key=lambda place: -scores[place])[: top_n or None]
    return pb.RerankResponse(
        request_id=wish.request_id,
        results=[pb.RankedDocument(index=place, score=scores[place]) for place in order],
        usage=types_pb2.Usage(prompt_tokens=prompt_tokens),
        precision=int(precision),  # type: ignore[arg-type]
    )


def encode_classify(
    wish: EncodeWish, top_n: int, values: Sequence[Float32], prompt_tokens: int, precision: Precision
) -> pb.ClassifyResponse:
    """Probabilities: the softmax over the labels, the sigmoid where there is one only."""
    response = pb.ClassifyResponse(
        request_id=wish.request_id,
        usage=types_pb2.Usage(prompt_tokens=prompt_tokens),
        precision=int(precision),  # type: ignore[arg-type]
    )
    for scores in values:
        if len(scores) == 1:
            probabilities = 1 / (1 + np.exp(-scores))
        else:
            weights = np.exp(scores - scores.max())
            probabilities = weights / weights.sum()
        best = np.argsort(-probabilities, kind="stable")[: top_n or None]
        response.results.add(
            labels=[pb.LabelScore(label=wish.model.labels[place], score=probabilities[place]) for place in best]
        )
    return response


def _wish(
    request: Request,
    request_id: str,
    model: ModelInfo,
    texts: Sequence[EncoderText],
    token_ids: Sequence[NDArray[np.uint32]],
    readout: Readout,
) -> EncodeWish:
    if len(texts) + len(token_ids) > MAX_TEXTS:
        raise InvalidRequest(
            f"the call has {len(texts) + len(token_ids)} texts, must have {MAX_TEXTS} at most",
            field="texts",
            limit=str(MAX_TEXTS),
        )
    return EncodeWish(
        request_id=request_id,
        model=model,
        texts=texts,
        token_ids=token_ids,
        truncate=request.truncate,
        readout=readout,
        qos=enum_of(QosClass, "qos_class", request.qos_class or QosClass.NORMAL),
        precision=enum_of(Precision, "precision", request.precision),
    )


def _plain(texts: Sequence[str], field: str = "texts") -> list[EncoderText]:
    for place, text in enumerate(texts):
        if not text:
            raise InvalidRequest(f"{field}[{place}] is empty", field=f"{field}[{place}]", limit="1 character at least")
    return [EncoderText(text) for text in texts]
