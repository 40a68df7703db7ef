"""One request's view of the call that it came with: many share a stream, and each may have a timeout of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

Context = grpc.aio.ServicerContext[Any, Any]


class Call:
    """What the gateway's own calls ask of a call. Its answers are read to their end, or closed, by this door: nothing
    is left over for a callback when the call is done."""

    def __init__(self, context: Context, timeout_s: float | None) -> None:
        self._context = context
        self._ends = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    def invocation_metadata(self) -> grpc.aio.Metadata | None:
        return self._context.invocation_metadata()

    def time_remaining(self) -> float | None:
        """The call's, or what is left of the timeout where that is less; None for neither."""
        left_s: float | None = self._context.time_remaining()
        if self._ends is None:
            return left_s
        own_s = max(0.0, self._ends - asyncio.get_running_loop().time())
        return own_s if left_s is None else min(left_s, own_s)

    def add_done_callback(self, callback: Callable[..., None]) -> None:
        """Nothing to do, as the class says."""
