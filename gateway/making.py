"""How an answer is made, wherever its pieces go: prepared, placed and relayed. What that takes, an exit stack keeps."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

from headrace.core.request import QosClass
from headrace.gateway.admission import Permit
from headrace.gateway.answer import Answer
from headrace.gateway.attempts import attempts
from headrace.gateway.codec import fit
from headrace.gateway.executor_link import ExecutorPool
from headrace.gateway.generation import Generation, Piece
from headrace.gateway.output_check import OutputChecks
from headrace.gateway.ports import Preparer, TextModels
from headrace.gateway.preparation import prepare
from headrace.gateway.relay import Relay
from headrace.gateway.request_span import RequestSpan
from headrace.gateway.run import Run
from headrace.gateway.scheduler_link import SchedulerLink
from headrace.gateway.screen_gate import Screening


class Maker:
    """The gateway's parts as answers use them."""

    def __init__(
        self,
        preparer: Preparer,
        texts: TextModels,
        scheduler: SchedulerLink,
        executors: ExecutorPool,
        max_buffered_frames: int,
        max_failovers: int,
        checks: OutputChecks,
    ) -> None:
        self._preparer = preparer
        self._texts = texts
        self._scheduler = scheduler
        self._executors = executors
        self._max_buffered_frames = max_buffered_frames
        self._max_failovers = max_failovers
        self._checks = checks

    async def pieces(
        self,
        run: Run,
        span: RequestSpan,
        permit: Permit,
        charge: Callable[[int], Awaitable[None]],
        screening: Screening,
        deadline: float | None,
        held: ExitStack,
    ) -> AsyncIterator[Piece]:
        """The answers' pieces, those after what the run has from another gateway; `charge` is told how many tokens they
        may take. Raises what the answer fails with."""
        wish = run.wish
        if run.known is not None and run.known.whole:
            span.finished()
            return
        token_ids = await prepare(self._preparer, wish, span.parent, deadline)
        sampling = fit(wish, len(token_ids))
        permit.correct(len(token_ids) + sampling.n * sampling.max_tokens)
        await charge(permit.tokens)
        generation = Generation(
            request_id=wish.request_id,
            wire_id=run.wire_id,
            model=wish.model,
            token_ids=token_ids,
            sampling=sampling,
            qos=QosClass.BATCH if run.kept else wish.qos,
            precision=wish.precision,
            tenant=run.tenant,
            deadline=deadline,
            trace=span.context,
        )
        relay = run.relay = Relay(
            generation, self._answers(generation), self._max_buffered_frames, max_failovers=self._max_failovers
        )
        if run.known is not None:
            relay.resume(run.known)
        span.submitted(relay, generation)
        screening.guards(relay)
        if deadline is not None:
            timer = asyncio.get_running_loop().call_at(deadline, relay.expire)
            held.callback(timer.cancel)
        held.enter_context(attempts(relay, self._scheduler, self._executors, span.placed, span.lost))
        watch = self._checks.watch(sampling.n, max(map(len, sampling.stop), default=0), run.known, span.checked)
        while pieces := await relay.pieces():
            await screening.passed(deadline)
            if watch is not None:
                pieces = await watch.passed(pieces)
            if pieces:
                span.progressed()
            for piece in pieces:
                if piece.usage is not None:
                    piece.screen = await screening.finding() or (watch.finding if watch is not None else None)
                yield piece
        span.finished()

    def _answers(self, generation: Generation) -> list[Answer]:
        sampling, model = generation.sampling, generation.model
        end_token_ids = frozenset(sampling.stop_token_ids) | (
            frozenset() if sampling.ignore_eos else frozenset(model.eos_token_ids)
        )
        return [Answer(self._texts.text_stream(model.name), sampling, end_token_ids) for _ in range(sampling.n)]
