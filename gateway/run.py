"""One answer being made by a task of its own, whatever becomes of the call that asked for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

from opentelemetry.trace import SpanContext

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis.interceptors import as_error
from headrace.core.errors import Draining, HeadraceError
from headrace.gateway.codec import encode
from headrace.gateway.generation import TOKEN_BYTES, Known, Piece, Wish
from headrace.gateway.relay import Relay
from headrace.gateway.results.log import ResultLog


class Run:
    """`relay` is there once its prompt has been prepared. `request` is what was asked, for whoever may have to go on
    with it, `trace` its call's span, and `latest` when it is of no use any more, on the event loop's clock.

    One that was begun by another gateway has `known`, and those pieces in its log.
    """

    def __init__(
        self,
        wish: Wish,
        tenant: str,
        wire_id: str,
        request: pb.GenerateRequest | None = None,
        trace: SpanContext | None = None,
        latest: float | None = None,
        known: Known | None = None,
        log: ResultLog[pb.GenerateResponse] | None = None,
    ) -> None:
        self.wish = wish
        self.wire_id = wire_id
        self.tenant = tenant
        self.request = request
        self.trace = trace
        self.latest = latest
        self.known = known
        self.log = log or ResultLog[pb.GenerateResponse]()
        self.relay: Relay | None = None
        self.task: asyncio.Task[None] | None = None
        self.opening: asyncio.Future[str | None] | None = None
        self.kept = known is not None
        self.taken = False
        """Another gateway goes on with it."""
        self.abandoned = False
        self._cause: HeadraceError | None = None

    @property
    def prompt_tokens(self) -> int:
        """0 until the prompt has been prepared."""
        return 0 if self.relay is None else len(self.relay.generation.token_ids)

    def stop(self, cause: HeadraceError | None = None) -> None:
        """Ends it with `cause`, or as broken off."""
        self._cause = self._cause or cause
        if self.task is not None:
            self.task.cancel()

    def abandon(self) -> None:
        """Its call is over: it ends unless it is kept."""
        self.abandoned = True
        if not self.kept:
            self.stop()

    async def make(self, pieces: AsyncIterator[Piece], held: ExitStack) -> None:
        """Fills the log; `held` goes back at the end."""
        try:
            with held:
                try:
                    async for piece in pieces:
                        self.log.append(encode(self.wish.request_id, piece), len(piece.token_ids) // TOKEN_BYTES)
                except asyncio.CancelledError:
                    if self._cause is None:
                        raise
                    raise self._cause from None
            self.log.end(None)
        except Exception as error:
            self.log.end(as_error(error))
        finally:
            self.log.end(Draining("the gateway left before the answer was made"))
