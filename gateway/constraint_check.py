"""Whether a constraint on answers is a valid one: compiled in a thread before the call takes anything else.

A constraint that has been seen lately is known. What one may take is bounded by its size and by the compiler's own
bounds (models/grammar.py); who would wait longer than CHECK_S for a thread is told to come again.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from headrace.core.constraint import Constraint
from headrace.core.errors import InvalidRequest, Overloaded
from headrace.gateway.meters import GatewayMeters
from headrace.models.grammar import check

CHECK_S = 2.0
MAX_KNOWN = 128


class ConstraintChecks:
    """The event loop owns it; `pool` has the threads."""

    def __init__(self, pool: ThreadPoolExecutor, meters: GatewayMeters) -> None:
        self._pool = pool
        self._meters = meters
        self._known: OrderedDict[Constraint, InvalidRequest | None] = OrderedDict()

    async def check(self, constraint: Constraint | None) -> None:
        """Raises InvalidRequest that names the field, Overloaded where too many are being checked."""
        if constraint is None:
            return
        self._meters.constraints.labels(constraint.kind.value).inc()
        if constraint not in self._known:
            began = time.perf_counter()
            self._known[constraint] = await self._compiled(constraint)
            self._meters.constraint_seconds.observe(time.perf_counter() - began)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(constraint)
        if error := self._known[constraint]:
            raise InvalidRequest(error.message, field=error.field, limit=error.limit)

    async def _compiled(self, constraint: Constraint) -> InvalidRequest | None:
        """What is wrong with it."""
        try:
            async with asyncio.timeout(CHECK_S):
                await asyncio.get_running_loop().run_in_executor(self._pool, check, constraint)
        except InvalidRequest as error:
            return error
        except TimeoutError:
            raise Overloaded(f"{constraint.field} could not be checked in {CHECK_S:g} s: try again") from None
        return None


@asynccontextmanager
async def open_constraint_checks(meters: GatewayMeters) -> AsyncIterator[ConstraintChecks]:
    """With a thread, which ends with the block."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="constraints")
    try:
        yield ConstraintChecks(pool, meters)
    finally:
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)
