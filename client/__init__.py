"""The Python client: `Client` and `AsyncClient`, and the values they take and give.

Errors raised are those of headrace.core.errors.
"""

from headrace.chassis.config import TlsSettings as Tls
from headrace.client.blocking import Client
from headrace.client.streaming import AsyncClient
from headrace.client.values import (
    Answer,
    Embeddings,
    Labels,
    LabelScore,
    Message,
    Model,
    Piece,
    Ranked,
    Ranking,
    Result,
    ResultHandle,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from headrace.core.request import FinishReason, Precision
from headrace.core.result_state import ResultState

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Embeddings",
    "FinishReason",
    "LabelScore",
    "Labels",
    "Message",
    "Model",
    "Piece",
    "Precision",
    "Ranked",
    "Ranking",
    "Result",
    "ResultHandle",
    "ResultState",
    "Tls",
    "TokenLogprob",
    "TokenLogprobs",
    "Usage",
]
