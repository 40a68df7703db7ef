"""One table from errors to HTTP status, in OpenAI's form and in this door's words."""

import math
from dataclasses import dataclass
from typing import Any

from headrace.chassis.status import DEFAULT_RETRY_S
from headrace.core import errors
from headrace.gateway.openai.headers import CLASS, PRECISION, REQUEST_ID
from headrace.gateway.wording import Wording

_INVALID, _SERVER = "invalid_request_error", "server_error"

_TABLE: list[tuple[type[errors.HeadraceError], int, str]] = [
    (errors.InvalidRequest, 400, _INVALID),
    (errors.Unsupported, 400, _INVALID),  # not 501: clients ask again after one
    (errors.ScreenRejected, 400, _INVALID),
    (errors.Unauthenticated, 401, "authentication_error"),
    (errors.PermissionDenied, 403, "permission_error"),
    (errors.NotFound, 404, _INVALID),
    (errors.Overloaded, 429, "rate_limit_error"),
    (errors.Cancelled, 499, _INVALID),
    (errors.Unavailable, 503, _SERVER),
    (errors.EngineNotReady, 503, _SERVER),
    (errors.DeadlineMissed, 504, _SERVER),
]
_FINAL = (errors.DeadlineMissed, errors.EngineFault)
"""Asking again would not help, but clients do so after any status from 500 on unless they are told."""

_WORDING = Wording(
    fields={
        "sampling.json_schema": "response_format.json_schema.schema",
        "sampling.json_object": "response_format",
        "sampling.regex": "guided_regex",
        "sampling.choice": "guided_choice",
        "sampling.grammar": "guided_grammar",
        "request_id": REQUEST_ID,
        "handle": "response_id",
        "qos_class": CLASS,
        "precision": PRECISION,
        "text": "prompt",
        "tokens.token_ids": "prompt",
        "texts": "input",
        "chat": "messages",
        "chat.messages": "messages",
    },
    prefixes={"sampling.": "", "chat.messages[": "messages[", "texts[": "input[", "tokens[": "input["},
)


@dataclass(frozen=True, slots=True)
class Failure:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]


def failure(error: errors.HeadraceError) -> Failure:
    """How a call that failed with it is answered."""
    error = _WORDING.of(error)
    status, kind = next(((code, kind) for cls, code, kind in _TABLE if isinstance(error, cls)), (500, _SERVER))
    headers = {}
    if isinstance(error, errors.Overloaded):
        wait_s = error.retry_after_s or DEFAULT_RETRY_S
        headers = {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(wait_s * 1000))}
    elif isinstance(error, _FINAL):
        headers = {"x-should-retry": "false"}
    about: dict[str, Any] = {
        "message": error.message,
        "type": kind,
        "param": error.field or None,
        "code": error.reason.lower(),
    }
    about |= {name: value for name, value in (("limit", error.limit), ("category", error.category)) if value}
    return Failure(status, headers, {"error": about})
