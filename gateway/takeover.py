"""Background answers whose gateway is gone: found by their leases in a store that several gateways share, and gone on
with from what is stored of them. The store decides who goes on; whoever was there before is refused from then on.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from opentelemetry.trace import Tracer

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis.config import ResultsSettings
from headrace.core.errors import HeadraceError
from headrace.core.request import FinishReason, Precision
from headrace.core.result_state import ResultState
from headrace.gateway.admission import Admission
from headrace.gateway.background import READ_PIECES, Background
from headrace.gateway.codec import decode
from headrace.gateway.generation import TOKEN_BYTES, Known
from headrace.gateway.making import Maker
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.ports import TextModels
from headrace.gateway.recorder import lease
from headrace.gateway.request_span import request_span
from headrace.gateway.results.log import ResultLog
from headrace.gateway.results.port import ResultStore, Summary
from headrace.gateway.run import Run
from headrace.gateway.screen_gate import ScreenGate

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16
"""Taken over after one look, so that other gateways get their share."""


class Takeovers:
    """`run` looks for them until cancelled, while this gateway `can_serve`."""

    def __init__(
        self,
        store: ResultStore,
        settings: ResultsSettings,
        background: Background,
        maker: Maker,
        admission: Admission,
        gate: ScreenGate,
        texts: TextModels,
        tracer: Tracer,
        meters: GatewayMeters,
        can_serve: Callable[[], bool],
    ) -> None:
        self._store = store
        self._settings = settings
        self._background = background
        self._maker = maker
        self._admission = admission
        self._gate = gate
        self._texts = texts
        self._tracer = tracer
        self._meters = meters
        self._can_serve = can_serve

    async def run(self) -> None:
        """Looks about once a progress_s; gateways that began together do not look together."""
        while self._settings.max_takeovers:
            await asyncio.sleep(self._settings.progress_s * random.uniform(0.5, 1.5))
            if not self._can_serve():
                continue
            try:
                for lost in await self._store.lost(time.time(), MOST_AT_ONCE):
                    if not self._background.makes(lost.handle):
                        await self._take(lost)
            except HeadraceError as error:
                log.warning("answers of other gateways are not looked for: %s", error.message)
            except Exception:  # what another gateway has left must not end this one
                log.exception("a result of another gateway cannot be gone on with")

    async def _take(self, lost: Summary) -> None:
        """Goes on with it where this gateway has room for it and is the first; raises what the store does."""
        now_s = time.time()
        if not lost.may_be_taken(now_s, self._settings.max_takeovers):
            return
        with ExitStack() as held:
            try:
                self._texts.info(lost.model)
                permit = held.enter_context(self._admission.permit(lost.request_bytes))
                held.enter_context(self._admission.claim(lost.request_id))
            except HeadraceError as error:
                log.info("result %s is left to other gateways: %s", lost.handle, error.message)
                return
            request = await self._store.take(lost.handle, lost.epoch, now_s, *lease(self._settings, now_s))
            if request is None:
                return
            epoch = lost.epoch + 1
            try:
                wish = decode(pb.GenerateRequest.FromString(request), lost.request_id, self._texts)
            except HeadraceError as error:  # another configuration than its gateway had
                ends_s = now_s + self._settings.ttl_s
                await self._store.close(lost.handle, epoch, ResultState.FAILED, error.reason, error.message, ends_s)
                return
            pieces = await self._stored(lost.handle)
            log.warning("goes on with result %s after %d pieces: its gateway is gone", lost.handle, len(pieces))
            span = held.enter_context(request_span(self._tracer, self._meters, (("traceparent", lost.trace),)))
            span.named(lost.request_id)
            deadline = asyncio.get_running_loop().time() + lost.due_s - now_s
            known = known_of(pieces, wish.sampling.n)
            span.decoded(wish, lost.tenant, deadline)
            span.resumed(lost.handle, known.num_tokens)
            run = Run(
                wish,
                lost.tenant,
                f"{lost.request_id}.{secrets.token_hex(4)}",  # not the one by which it is known already
                known=known,
                log=ResultLog(pieces, known.num_tokens),
            )
            screening = held.enter_context(self._gate.screening(wish, lost.tenant, span))
            its = held.pop_all()
            made = self._maker.pieces(run, span, permit, _paid, screening, deadline, its)
            self._background.resume(lost.handle, epoch, run, made, its)

    async def _stored(self, handle: str) -> list[pb.GenerateResponse]:
        pieces: list[pb.GenerateResponse] = []
        while part := await self._store.read(handle, len(pieces), READ_PIECES):
            pieces += [pb.GenerateResponse.FromString(each) for each in part]
        return pieces


async def _paid(tokens: int) -> None:
    """The tenant's quota was charged when the request was accepted."""


def known_of(pieces: Sequence[pb.GenerateResponse], n: int) -> Known:
    """What the pieces of `n` answers say of them."""
    token_ids = [b""] * n
    text, finishes = [""] * n, [FinishReason.NONE] * n
    for piece in pieces:
        token_ids[piece.index] += piece.token_ids
        text[piece.index] += piece.text
        if piece.finish_reason:
            finishes[piece.index] = FinishReason(piece.finish_reason)
    served = (Precision.known(piece.precision) for piece in pieces)
    precision = next((each for each in served if each), Precision.ANY)
    return Known(tuple(token_ids), tuple(text), tuple(finishes), precision, sum(map(len, token_ids)) // TOKEN_BYTES)
