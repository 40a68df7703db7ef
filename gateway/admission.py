"""Permits: how much the gateway takes on at once, by requests, tokens and bytes, and which request ids are active.

Full means refused, never waited for.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.chassis.config import GatewaySettings
from headrace.core.errors import InvalidRequest, Overloaded

RETRY_AFTER_S = 0.5
BYTES_PER_TOKEN = 3
"""Of text, on the safe side; only an estimate until the prompt is tokenised."""


class Permit:
    """One admitted request's share, given back when its block ends."""

    def __init__(self, admission: "Admission", num_bytes: int, tokens: int) -> None:
        self._admission = admission
        self.num_bytes = num_bytes
        self.tokens = tokens

    def correct(self, tokens: int) -> None:
        """Replaces the estimate by the real number. Raises Overloaded if that is more than is free."""
        self._admission.check(requests=0, tokens=tokens, held_tokens=self.tokens, num_bytes=0)
        self._admission.tokens += tokens - self.tokens
        self.tokens = tokens


class Admission:
    """The gateway's bounds and what is in use of them. One event loop owns it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.requests = 0
        self.tokens = 0
        self.num_bytes = 0
        self._active: set[str] = set()

    @property
    def num_active(self) -> int:
        """Request ids in use."""
        return len(self._active)

    @contextmanager
    def claim(self, request_id: str) -> Iterator[None]:
        """Holds the id for one request. Raises InvalidRequest while another one has it."""
        if request_id in self._active:
            raise InvalidRequest(
                "a request of this request_id is active", field="request_id", limit="unique among active requests"
            )
        self._active.add(request_id)
        try:
            yield
        finally:
            self._active.remove(request_id)

    @contextmanager
    def permit(self, num_bytes: int, requests: int = 1) -> Iterator[Permit]:
        """Raises Overloaded at once where a bound is reached, InvalidRequest where even an idle gateway had no room."""
        permit = Permit(self, num_bytes, num_bytes // BYTES_PER_TOKEN)
        self.check(requests=requests, tokens=permit.tokens, held_tokens=0, num_bytes=num_bytes)
        self.requests += requests
        self.tokens += permit.tokens
        self.num_bytes += num_bytes
        try:
            yield permit
        finally:
            self.requests -= requests
            self.tokens -= permit.tokens
            self.num_bytes -= num_bytes

    def check(self, *, requests: int, tokens: int, held_tokens: int, num_bytes: int) -> None:
        """`held_tokens` of `tokens` are this request's already."""
        bounds = (
            ("requests", requests, self.requests, self._settings.max_requests),
            ("tokens", tokens, self.tokens - held_tokens, self._settings.max_queued_tokens),
            ("bytes", num_bytes, self.num_bytes, self._settings.max_queued_bytes),
        )
        for unit, wanted, used, limit in bounds:
            if wanted > limit:
                raise InvalidRequest(
                    f"the request needs {wanted} {unit}, the gateway admits {limit} at once",
                    field="prompt",
                    limit=str(limit),
                )
            if wanted and used + wanted > limit:
                raise Overloaded(
                    f"the gateway is full: {used} of {limit} {unit} in use",
                    limit=f"{limit} {unit}",
                    retry_after_s=RETRY_AFTER_S,
                )
