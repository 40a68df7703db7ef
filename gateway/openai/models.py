"""Models in OpenAI's form, with what vLLM and this gateway say of them beside it."""

from typing import Any

from headrace.api.gateway.v1 import gateway_pb2

OWNER = "headrace"


def encode_model(model: gateway_pb2.Model) -> dict[str, Any]:
    """`created` is part of the form, and nobody keeps it here."""
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": OWNER,
        "max_model_len": model.context_tokens,
        "kind": model.kind,
        "digest": model.digest,
        "ready": model.ready,
    }
