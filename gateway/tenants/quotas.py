"""A tenant's share of the gateway: calls at once, and calls and tokens a minute. Refused before any work, and without
a place in anything that others wait for.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import InvalidRequest, TenantOverLimit
from headrace.gateway.admission import RETRY_AFTER_S
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.windows import Windows


class Quotas:
    """One event loop owns it."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._running: Counter[str] = Counter()

    @property
    def num_running(self) -> int:
        """Calls of tenants with a bound on them."""
        return self._running.total()

    @contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """One of the tenant's calls at once. Raises TenantOverLimit where all are taken."""
        tenant, bound = caller.tenant, caller.quota.max_requests
        if not bound:
            yield
            return
        if self._running[tenant] >= bound:
            raise TenantOverLimit(
                f"tenant {tenant} has {bound} calls running",
                limit=f"{bound} requests at once",
                retry_after_s=RETRY_AFTER_S,
            )
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    async def take(self, caller: Caller, tokens: int) -> None:
        """Counts one call, and looks whether its estimated `tokens` have room. Raises TenantOverLimit."""
        quota = caller.quota
        if (bound := quota.tokens_per_minute) and not await self._windows.test(
            "tokens", caller.tenant, bound, min(tokens, bound)
        ):
            raise await self._over("tokens", caller, bound, min(tokens, bound))
        if (bound := quota.requests_per_minute) and not await self._windows.hit("requests", caller.tenant, bound, 1):
            raise await self._over("requests", caller, bound, 1)

    async def charge(self, caller: Caller, tokens: int) -> None:
        """Counts the call's real tokens. Raises TenantOverLimit, and InvalidRequest for more than a whole minute's."""
        bound = caller.quota.tokens_per_minute
        if not bound:
            return
        if tokens > bound:
            raise InvalidRequest(
                f"the request needs {tokens} tokens, tenant {caller.tenant} has {bound} a minute",
                field="prompt",
                limit=f"{bound} tokens a minute",
            )
        if not await self._windows.hit("tokens", caller.tenant, bound, tokens):
            raise await self._over("tokens", caller, bound, tokens)

    async def _over(self, unit: str, caller: Caller, bound: int, cost: int) -> TenantOverLimit:
        return TenantOverLimit(
            f"tenant {caller.tenant} has used its {bound} {unit} a minute",
            limit=f"{bound} {unit} a minute",
            retry_after_s=max(0.001, await self._windows.room_in_s(unit, caller.tenant, bound, cost)),
        )
