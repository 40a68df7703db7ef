"""Embed, Rerank and Classify: one call's texts from permit to values. Each text is a request of its own to the
scheduler, so that it shares a batch with texts of other calls. What a call takes, its exit stack gives back.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import Tracer

from headrace.core.errors import HeadraceError
from headrace.core.request import Precision
from headrace.gateway.admission import Admission
from headrace.gateway.attempts import FIRST_PAUSE_S, LONGEST_PAUSE_S, may_change
from headrace.gateway.codec import request_id_of
from headrace.gateway.encoding import Encoding, EncodingRelay
from headrace.gateway.encoding_codec import EncodeWish, Request
from headrace.gateway.encoding_span import EncodingSpan, encoding_span
from headrace.gateway.executor_link import ExecutorPool
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.ports import EncoderTokens, Preparer
from headrace.gateway.relay import deadline_missed
from headrace.gateway.scheduler_link import SchedulerLink
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.quotas import Quotas

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Each text's values, in order; how many tokens they had; the precision that served."""

    values: Sequence[NDArray[np.float32]]
    prompt_tokens: int
    precision: Precision


class EncodingCalls:
    """The gateway's parts as calls use them."""

    def __init__(
        self,
        tracer: Tracer,
        meters: GatewayMeters,
        preparer: Preparer,
        admission: Admission,
        quotas: Quotas,
        scheduler: SchedulerLink,
        executors: ExecutorPool,
        max_failovers: int = 0,
    ) -> None:
        self._tracer = tracer
        self._meters = meters
        self._preparer = preparer
        self._admission = admission
        self._quotas = quotas
        self._scheduler = scheduler
        self._executors = executors
        self._max_failovers = max_failovers

    async def run(
        self,
        name: str,
        request: Request,
        decode: Callable[[str], EncodeWish],
        caller: Callable[[], Caller],
        metadata: Metadata,
        deadline: float | None,
        *,
        through_door: bool = False,
    ) -> tuple[EncodeWish, Encoded]:
        """Serves one call, of our contract or of another door's, under the span `name`. Raises what fails the first of
        its texts, DeadlineMissed."""
        with ExitStack() as held:
            span = held.enter_context(encoding_span(self._tracer, self._meters, name, metadata, deadline))
            if not through_door:
                span.called()
            request_id = request_id_of(request)
            span.named(request_id)
            who = caller()
            permit = held.enter_context(self._admission.permit(request.ByteSize(), requests=0))
            wish = decode(request_id)
            span.decoded(wish, who.tenant)
            who.check(wish.model.name, wish.qos)
            held.enter_context(self._quotas.place(who))
            await self._quotas.take(who, permit.tokens)
            held.enter_context(self._admission.permit(0, requests=wish.num_texts))
            held.enter_context(self._admission.claim(wish.request_id))
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    tokens = await self._tokens(wish, span)
                    prompt_tokens = sum(len(token_ids) for token_ids, _ in tokens)
                    permit.correct(prompt_tokens)
                    await self._quotas.charge(who, prompt_tokens)
                    encoded = await self._encode(wish, tokens, who.tenant, deadline, span)
            except TimeoutError:
                if limit.expired():
                    raise deadline_missed(0) from None
                raise
            span.finished(prompt_tokens)
            return wish, encoded

    async def _tokens(self, wish: EncodeWish, span: EncodingSpan) -> Sequence[EncoderTokens]:
        if wish.token_ids:
            return [(token_ids, len(token_ids)) for token_ids in wish.token_ids]
        if not wish.texts:
            return []
        return await self._preparer.prepare_texts(
            wish.request_id, wish.model.name, wish.texts, wish.truncate, span.parent
        )

    async def _encode(
        self,
        wish: EncodeWish,
        tokens: Sequence[EncoderTokens],
        tenant: str,
        deadline: float | None,
        span: EncodingSpan,
    ) -> Encoded:
        call_id = f"{wish.request_id}.{secrets.token_hex(4)}"
        relays = [
            EncodingRelay(
                Encoding(
                    wire_id=f"{call_id}.{place}",
                    model=wish.model,
                    token_ids=token_ids,
                    first_tokens=first_tokens,
                    readout=wish.readout,
                    qos=wish.qos,
                    precision=wish.precision,
                    tenant=tenant,
                    deadline=deadline,
                    trace=span.context,
                ),
                self._max_failovers,
            )
            for place, (token_ids, first_tokens) in enumerate(tokens)
        ]
        if len(relays) == 1:
            values = [await self._one(relays[0], span)]
        else:
            try:
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(self._one(relay, span)) for relay in relays]
            except BaseExceptionGroup as group:
                raise _first(group) from None
            values = [task.result() for task in running]
        precision = next((relay.served_by.precision for relay in relays if relay.served_by), Precision.ANY)
        return Encoded(values, sum(len(token_ids) for token_ids, _ in tokens), precision)

    async def _one(self, relay: EncodingRelay, span: EncodingSpan) -> NDArray[np.float32]:
        """Its values, from another executor where one is lost."""
        while True:
            try:
                placement = await self._scheduler.placement(relay)
            except HeadraceError as error:
                if not may_change(error, self._executors, relay.generation.model.name):
                    raise
                await asyncio.sleep(LONGEST_PAUSE_S)
                continue
            with self._executors.link(placement.address).running(relay, placement):
                span.placed(placement)
                if (values := await relay.values()) is not None:
                    return values
            await asyncio.sleep(FIRST_PAUSE_S)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What failed the call: an error of ours before anything that followed from it."""
    for error in group.exceptions:
        if isinstance(error, HeadraceError):
            return error
    return group.exceptions[0]
