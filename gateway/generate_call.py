"""Generate from its arrival to an answer that can be made: who calls, what they may ask for, and what it takes of the
gateway. Where its pieces go, and for how long, is the service's to say.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from opentelemetry.trace import Tracer

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis.config import SlaSettings
from headrace.core.request import DEFAULT_MAX_TOKENS
from headrace.gateway.admission import Admission
from headrace.gateway.cache.answers import AnswerCache, Lookup
from headrace.gateway.cache.key import key_of
from headrace.gateway.codec import decode, request_id_of, sla_of
from headrace.gateway.constraint_check import ConstraintChecks
from headrace.gateway.generation import Piece, Wish
from headrace.gateway.making import Maker
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.ports import CallContext, TextModels
from headrace.gateway.request_span import RequestSpan, request_span
from headrace.gateway.run import Run
from headrace.gateway.screen_gate import ScreenGate, Screening
from headrace.gateway.sla import Sla
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.callers import Callers
from headrace.gateway.tenants.quotas import Quotas

DEADLINE_MARGIN_S = 0.05
DEADLINE_MARGIN_SHARE = 0.1
"""The gateway answers this much (the smaller) ahead of the call's deadline, so that its reason reaches the caller."""


Make = Callable[[float | None, ExitStack], AsyncIterator[Piece]]


@dataclass(frozen=True, slots=True)
class Begun:
    """`make(deadline, held)` makes the answer's pieces. Times are on the event loop's clock."""

    run: Run
    span: RequestSpan
    sla: Sla | None
    arrived: float
    deadline: float | None
    make: Make


class GenerateCalls:
    """The gateway's parts as calls use them."""

    def __init__(
        self,
        tracer: Tracer,
        meters: GatewayMeters,
        texts: TextModels,
        admission: Admission,
        callers: Callers,
        quotas: Quotas,
        gate: ScreenGate,
        maker: Maker,
        sla: SlaSettings,
        cache: AnswerCache | None,
        constraints: ConstraintChecks,
        record_prompts: bool = False,
    ) -> None:
        self._tracer = tracer
        self._meters = meters
        self._texts = texts
        self._admission = admission
        self._callers = callers
        self._quotas = quotas
        self._gate = gate
        self._maker = maker
        self._sla = sla
        self._cache = cache
        self._constraints = constraints
        self._record_prompts = record_prompts

    async def begin(
        self, request: pb.GenerateRequest, context: CallContext, caller: Caller | None, held: ExitStack
    ) -> Begun:
        """What it takes, `held` gives back. Raises what refuses it."""
        metadata: tuple[tuple[str, str | bytes], ...] = tuple(context.invocation_metadata() or ())
        arrived = asyncio.get_running_loop().time()
        deadline = deadline_of(context)
        span = held.enter_context(
            request_span(self._tracer, self._meters, metadata, record_prompt=self._record_prompts)
        )
        if caller is None:
            span.called()
        request_id = request_id_of(request)
        span.named(request_id)
        caller = caller or self._callers.caller(metadata)
        permit = held.enter_context(self._admission.permit(request.ByteSize()))
        wish = decode(request, request_id, self._texts)
        span.decoded(wish, caller.tenant, deadline)
        caller.check(wish.model.name, wish.qos)
        held.enter_context(self._quotas.place(caller))
        await self._constraints.check(wish.sampling.constraint)
        await self._quotas.take(caller, permit.tokens + _most_answer_tokens(wish))
        sla = sla_of(request, wish.qos, self._sla)
        held.enter_context(self._admission.claim(wish.request_id))
        screening = held.enter_context(self._gate.screening(wish, caller.tenant, span))
        drawn = f"{wish.request_id}.{secrets.token_hex(4)}" if request.request_id else wish.request_id
        run = Run(wish, caller.tenant, drawn, request, span.context)
        make: Make = partial(self._maker.pieces, run, span, permit, partial(self._quotas.charge, caller), screening)
        if self._cache is not None and request.cacheable and (key := key_of(request, wish, caller.tenant)) is not None:
            make = partial(_found_or_made, self._cache, key, run, span, screening, make)
        return Begun(run, span, sla, arrived, deadline, make)


def deadline_of(context: CallContext) -> float | None:
    """On the event loop's clock, None for none. One that has passed already raises at the first wait."""
    remaining_s = context.time_remaining()
    if remaining_s is None:
        return None
    return asyncio.get_running_loop().time() + remaining_s - min(DEADLINE_MARGIN_S, remaining_s * DEADLINE_MARGIN_SHARE)


async def _found_or_made(
    cache: AnswerCache,
    key: str,
    run: Run,
    span: RequestSpan,
    screening: Screening,
    make: Make,
    deadline: float | None,
    held: ExitStack,
) -> AsyncIterator[Piece]:
    """An answer that was made before is screened as any other: the screen may have learned something since then."""
    lookup, found = await cache.find(key)
    span.looked_up(lookup)
    if lookup is Lookup.HIT:
        await screening.passed(deadline)
        span.progressed()
        for piece in found:
            if piece.usage is not None:
                piece.screen = await screening.finding()
            yield piece
        span.finished()
        return
    wish = run.wish
    async for piece in cache.keeping(key, run.tenant, wish.model.name, wish.sampling.n, make(deadline, held)):
        yield piece


def _most_answer_tokens(wish: Wish) -> int:
    """Of all its answers; what is not given is bounded as it will be once the prompt is tokenised."""
    return wish.sampling.n * (wish.sampling.max_tokens if wish.max_tokens_given else DEFAULT_MAX_TOKENS)
