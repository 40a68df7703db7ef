"""What a caller with an SLA is sent: the answer as it is made, up to the moment at which a promise is broken."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.gateway.background import Background
from headrace.gateway.codec import encode_partial
from headrace.gateway.generation import TOKEN_BYTES, Usage
from headrace.gateway.relay import deadline_missed
from headrace.gateway.results.port import LONGEST_S
from headrace.gateway.run import Run
from headrace.gateway.sla import OnMiss, Sla

LEAD_S = 0.025
"""How long ahead of the SLA room is made in the store: what that takes must not make the answer late."""


class Noting(Protocol):
    """The call's span, as far as an SLA concerns it."""

    def sla_missed(self, promise: str, outcome: str, handle: str = "") -> None: ...


async def until_sla(
    background: Background, run: Run, sla: Sla, arrived: float, deadline: float | None, span: Noting
) -> AsyncIterator[pb.GenerateResponse]:
    """Ends with the answer, or at the SLA as it says. Times are on the event loop's clock; raises DeadlineMissed, and
    what the answer failed with.

    Shortly before a partial answer only what is in the store is sent: what its handle says has been sent must be there
    if the gateway dies the moment after.
    """
    clock, made = asyncio.get_running_loop().time, run.log
    sent = tokens = 0
    unfinished = set(range(run.wish.sampling.n))
    promised = True

    def next_piece() -> pb.GenerateResponse:
        nonlocal sent, tokens
        response = made.pieces[sent]
        sent, tokens = sent + 1, tokens + len(response.token_ids) // TOKEN_BYTES
        if response.finish_reason:
            unfinished.discard(response.index)
        return response

    while True:
        due = sla.due(begun=bool(made.pieces)) if promised else None
        at = arrived + due[1] if due else None
        now = clock()
        soon = at is not None and now >= at - LEAD_S and sla.on_miss is OnMiss.PARTIAL and not made.ended
        if soon:
            background.prepare(run)
            soon = not made.settled  # else there is no store to wait for
        if due and at is not None and now >= at and not made.ended:  # of a whole answer only the reader is late
            promised = False
            if sla.on_miss is OnMiss.CANCEL:
                missed = sla.missed(due[0], made.num_tokens)
                span.sla_missed(due[0], OnMiss.CANCEL.value)
                run.stop(missed)
                raise missed
            handle = await background.keep(run) if sla.on_miss is OnMiss.PARTIAL else None
            span.sla_missed(due[0], (OnMiss.PARTIAL if handle else OnMiss.CONTINUE).value, handle or "")
            if handle:
                await made.stored(sent - 1, clock() + LONGEST_S)
                there = made.num_stored
                while sent < there:
                    yield next_piece()
                usage = Usage(run.prompt_tokens, tokens, run.relay.usage.cached_prompt_tokens if run.relay else 0)
                for number, index in enumerate(sorted(unfinished), start=1):
                    result = (usage, handle, sent) if number == len(unfinished) else None
                    yield encode_partial(run.wish.request_id, index, result)
                return
        elif deadline is not None and now >= deadline:
            raise deadline_missed(tokens)
        elif sent < (made.num_stored if soon else len(made.pieces)):
            yield next_piece()
        elif made.ended:
            if made.error is not None:
                raise made.error
            return
        else:
            moments = [] if at is None else [at - LEAD_S, at]
            until = min((time for time in (*moments, deadline) if time is not None and time > now), default=None)
            await (made.stored if soon else made.more)(sent, until)
