"""A scheduler's life as a leader: it waits for the lease, leads while it renews it, and is over once it cannot.

A leader that was paused finds its lease over when it goes on, by its own clock, before it asks anybody: it ends rather
than decide beside its successor.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from headrace.core.errors import HeadraceError, Unavailable
from headrace.scheduler.leadership.lease import Lease

log = logging.getLogger(__name__)

RENEWALS = 4
"""In the time of one lease, so that a renewal may fail or be late."""


@asynccontextmanager
async def leading(lease: Lease | None, ttl_s: float) -> AsyncIterator[None]:
    """The block runs while this process leads; without a lease it always does.

    Raises Unavailable in the block's task once the lease is lost.
    """
    if lease is None:
        yield
        return
    holder = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    until = await _taken(lease, holder, ttl_s)
    log.info("leading as %s", holder)
    try:
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(_renew(lease, holder, ttl_s, until))
            yield
            renewing.cancel()
    except* Unavailable as lost:
        raise lost.exceptions[0] from None
    finally:
        with suppress(HeadraceError):
            await asyncio.to_thread(lease.give_back, holder)


async def _taken(lease: Lease, holder: str, ttl_s: float) -> float:
    """Waits for the lease; when it ends on this process's clock."""
    waiting = False
    while True:
        begun = time.monotonic()
        try:
            if await asyncio.to_thread(lease.take, holder, ttl_s):
                return begun + ttl_s
            if not waiting:
                log.info("standing by: another scheduler leads")
                waiting = True
        except Unavailable as error:
            log.warning("standing by: %s", error.message)
        await asyncio.sleep(ttl_s / RENEWALS)


async def _renew(lease: Lease, holder: str, ttl_s: float, until: float) -> None:
    """Until cancelled. Raises Unavailable once another leads, or nothing has been renewed for the time of a lease."""
    while True:
        await asyncio.sleep(ttl_s / RENEWALS)
        begun = time.monotonic()
        if begun >= until:
            raise Unavailable("the lease of this scheduler has ended: another may lead")
        try:
            leads = await asyncio.to_thread(lease.take, holder, ttl_s)
        except Unavailable as error:
            log.warning("the lease is not renewed: %s", error.message)
            continue
        if not leads:
            raise Unavailable("another scheduler has taken the lease")
        until = begun + ttl_s
