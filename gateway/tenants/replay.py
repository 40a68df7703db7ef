"""Tokens that are good for one call: their ids are remembered until they would have expired anyway."""

from contextvars import ContextVar

from headrace.core.errors import Overloaded
from headrace.gateway.tenants.wording import refused

_this_calls: ContextVar[str] = ContextVar("the id of the token of this call", default="")
"""A call may be asked several times whose it is: by its door, and by the gateway's own calls within it. Each call of
gRPC's, and each request over HTTP, is handled in a context of its own, which its tasks inherit."""

MAX_ID_CHARS = 256


class Replays:
    """Of one gateway, `max_ids` of them at most."""

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._until: dict[str, float] = {}

    def spend(self, token_id: object, until: float, now: float) -> None:
        """Raises Unauthenticated for an id that another call had, Overloaded where no more can be remembered."""
        if not isinstance(token_id, str) or not 0 < len(token_id) <= MAX_ID_CHARS:
            raise refused("this token's jti is not usable", limit=f"1..{MAX_ID_CHARS} characters")
        if _this_calls.get() == token_id:
            return
        if self._until.get(token_id, now) > now:
            raise refused("this token has been used", limit="one call")
        if len(self._until) >= self._max_ids:
            self._until = {known: ends for known, ends in self._until.items() if ends > now}
        if len(self._until) >= self._max_ids:
            raise Overloaded("no more tokens can be remembered", limit=f"{self._max_ids} tokens", retry_after_s=1.0)
        self._until[token_id] = until
        _this_calls.set(token_id)
