"""What a call says in its headers: who calls, how urgent it is, and until when; and its view as the gateway's calls
have it.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import InvalidRequest
from headrace.core.request import Precision, QosClass
from headrace.gateway.codec import MAX_NAME_CHARS
from headrace.gateway.tenants.caller import Caller

CLASS = "x-headrace-class"
PRECISION = "x-headrace-precision"
DEADLINE_MS = "x-headrace-deadline-ms"
CACHE = "x-headrace-cache"
REQUEST_ID = "x-request-id"

MAX_DEADLINE_MS = 86_400_000
_DRAWN_BYTES = 4
MAX_ID_CHARS = MAX_NAME_CHARS - 2 * _DRAWN_BYTES - len(".-0000")
"""Leaves room for what makes an id unique: what is drawn, and the number of a prompt."""

_CLASSES = {qos.name.lower(): int(qos) for qos in QosClass}
_CACHES = {"use": 1, "off": 0}
_PRECISIONS = {precision.name.lower(): int(precision) for precision in Precision if precision}


class Call:
    """A CallContext, and who calls. This door reads answers to their end or closes them: nothing is left over for a
    callback."""

    def __init__(self, headers: Mapping[str, str], caller: Caller) -> None:
        self.caller = caller
        self._metadata = tuple(headers.items())
        self._ends: float | None = None
        if (given := headers.get(DEADLINE_MS)) is not None:
            if not (given.isascii() and given.isdigit() and 1 <= int(given) <= MAX_DEADLINE_MS):
                limit = f"1..{MAX_DEADLINE_MS}"
                raise InvalidRequest(f"{DEADLINE_MS} must be a whole number in {limit}", field=DEADLINE_MS, limit=limit)
            self._ends = asyncio.get_running_loop().time() + int(given) / 1000

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds; None without the header."""
        return None if self._ends is None else max(0.0, self._ends - asyncio.get_running_loop().time())

    def add_done_callback(self, callback: Callable[..., None]) -> None:
        """Nothing to do, as the class says."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`request_id` is unique where the caller's need not be; 0 is the default of the two after it."""

    request_id: str
    qos: int
    precision: int
    cacheable: bool

    @property
    def generation_fields(self) -> dict[str, Any]:
        """As requests for generations name them."""
        return self.fields | {"cacheable": self.cacheable}

    @property
    def fields(self) -> dict[str, Any]:
        """As every request of the gateway's names them."""
        return {"request_id": self.request_id, "qos_class": self.qos, "precision": self.precision}


def read_asked(headers: Mapping[str, str]) -> Asked:
    """Raises InvalidRequest that names the header."""
    given = headers.get(REQUEST_ID, "")
    if len(given) > MAX_ID_CHARS or not given.isascii() or not given.isprintable():
        limit = f"{MAX_ID_CHARS} printable characters of ASCII"
        raise InvalidRequest(f"{REQUEST_ID} must be {limit} at most", field=REQUEST_ID, limit=limit)
    drawn = secrets.token_hex(_DRAWN_BYTES)
    return Asked(
        request_id=f"{given}.{drawn}" if given else secrets.token_hex(16),
        qos=_named(headers, CLASS, _CLASSES),
        precision=_named(headers, PRECISION, _PRECISIONS),
        cacheable=bool(_named(headers, CACHE, _CACHES)),
    )


def _named(headers: Mapping[str, str], name: str, known: Mapping[str, int]) -> int:
    given = headers.get(name)
    if given is None:
        return 0
    if given.lower() not in known:
        limit = ", ".join(known)
        raise InvalidRequest(f"{name} must be one of {limit}", field=name, limit=limit)
    return known[given.lower()]
