"""Texts for an encoder: an inference request to the gateway's own Embed or Classify, and their answers to tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.inference import inference_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest
from headrace.core.model import ModelInfo
from headrace.gateway.kserve import catalogue as names
from headrace.gateway.kserve.asked import Asked, read_asked
from headrace.gateway.kserve.parameters import UINT32, Parameters
from headrace.gateway.kserve.tensors import BYTES, Tensor, text_of

_POOLINGS = {"mean": types_pb2.POOLING_MEAN, "cls": types_pb2.POOLING_CLS, "last": types_pb2.POOLING_LAST}


@dataclass(frozen=True, slots=True)
class AskedTexts:
    """`outputs` are those to send, in order."""

    asked: Asked
    request: gateway_pb2.EmbedRequest | gateway_pb2.ClassifyRequest
    outputs: tuple[str, ...]


def decode_texts(request: pb.ModelInferRequest, inputs: Mapping[str, Tensor], model: ModelInfo) -> AskedTexts:
    """For Classify where the model has labels, else for Embed. Raises InvalidRequest that names what is wrong."""
    parameters = Parameters(request.parameters)
    known = tuple(spec.name for spec in names.signature(model).outputs)
    asked = read_asked(request, parameters, known)
    texts, truncate = _texts(inputs[names.TEXT]), parameters.flag("truncate") or False
    asking: gateway_pb2.EmbedRequest | gateway_pb2.ClassifyRequest
    if model.labels:
        asking = gateway_pb2.ClassifyRequest(
            model=model.name,
            texts=texts,
            truncate=truncate,
            top_n=parameters.integer("top_n", UINT32) or 0,
            qos_class=asked.qos,  # type: ignore[arg-type]
            precision=asked.precision,  # type: ignore[arg-type]
            request_id=asked.request_id,
        )
    else:
        asking = gateway_pb2.EmbedRequest(
            model=model.name,
            texts=texts,
            truncate=truncate,
            pooling=parameters.choice("pooling", _POOLINGS) or 0,  # type: ignore[arg-type]
            normalize=parameters.flag("normalize"),
            dimensions=parameters.integer("dimensions", UINT32) or 0,
            qos_class=asked.qos,  # type: ignore[arg-type]
            precision=asked.precision,  # type: ignore[arg-type]
            request_id=asked.request_id,
        )
    parameters.finish()
    return AskedTexts(asked, asking, tuple(asked.outputs) or known)


def embedding_tensors(response: gateway_pb2.EmbedResponse) -> list[Tensor]:
    """`embedding` [texts, dimensions]."""
    vectors = np.frombuffer(response.vectors, "<f4")
    shape = (len(vectors) // response.dimensions, response.dimensions)
    return [Tensor(names.EMBEDDING, "FP32", shape, vectors)]


def classification_tensors(response: gateway_pb2.ClassifyResponse) -> list[Tensor]:
    """`label` and `score` [texts, labels], the most probable first."""
    found = [each for result in response.results for each in result.labels]
    shape = (len(response.results), len(found) // len(response.results))
    return [
        Tensor(names.LABEL, BYTES, shape, [each.label.encode() for each in found]),
        Tensor(names.SCORE, "FP32", shape, np.array([each.score for each in found], "<f4")),
    ]


def _texts(tensor: Tensor) -> list[str]:
    name, shape = tensor.name, list(tensor.shape)
    if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)) or not shape[0]:
        raise InvalidRequest(
            f"{name} has shape {shape}, must be [N] or [N, 1] with 1 text at least", field=name, limit="[N] or [N, 1]"
        )
    texts = []
    for place, value in enumerate(tensor.values):
        field = f"{name}[{place}]"
        if not len(value):
            raise InvalidRequest(f"{field} is empty", field=field, limit="1 character at least")
        texts.append(text_of(value, field))
    return texts
