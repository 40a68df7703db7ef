"""The public service: one call from permit to last piece. What a call takes, its exit stack gives back."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from opentelemetry.trace import Tracer

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1 import gateway_pb2_grpc
from headrace.chassis import signals
from headrace.chassis.config import SlaSettings
from headrace.core.errors import HeadraceError
from headrace.core.request import DEFAULT_MAX_TOKENS
from headrace.gateway.admission import Admission
from headrace.gateway.background import Background
from headrace.gateway.codec import (
    decode,
    encode,
    encode_model,
    encode_result,
    request_id_of,
    sla_of,
)
from headrace.gateway.encoding_call import Encoded, EncodingCalls
from headrace.gateway.encoding_codec import (
    EncodeWish,
    decode_classify,
    decode_embed,
    decode_rerank,
    encode_classify,
    encode_embed,
    encode_rerank,
)
from headrace.gateway.executor_link import ExecutorPool
from headrace.gateway.generation import Wish
from headrace.gateway.making import Maker
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.ports import CallContext, Preparer, TextModels
from headrace.gateway.reader import reading
from headrace.gateway.request_span import request_span
from headrace.gateway.run import Run
from headrace.gateway.scheduler_link import SchedulerLink
from headrace.gateway.screen_gate import ScreenGate
from headrace.gateway.sla_stream import until_sla
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.callers import Callers
from headrace.gateway.tenants.quotas import Quotas

DEADLINE_MARGIN_S = 0.05
DEADLINE_MARGIN_SHARE = 0.1
"""The gateway answers this much (the smaller) ahead of the call's deadline, so that its reason reaches the caller."""


@dataclass(frozen=True, slots=True)
class InUse:
    """What a gateway holds right now; all but the links is zero once every call has ended."""

    requests: int
    tokens: int
    num_bytes: int
    active: int
    waiting: int
    running: int
    links: int


class GatewayService(gateway_pb2_grpc.GatewayServiceServicer):
    """One instance a process; one event loop owns it."""

    def __init__(
        self,
        tracer: Tracer,
        meters: GatewayMeters,
        preparer: Preparer,
        texts: TextModels,
        admission: Admission,
        scheduler: SchedulerLink,
        executors: ExecutorPool,
        gate: ScreenGate,
        maker: Maker,
        max_failovers: int,
        background: Background,
        sla: SlaSettings,
        callers: Callers,
        quotas: Quotas,
        longest_unread_s: float,
    ) -> None:
        self._tracer = tracer
        self._meters = meters
        self._texts = texts
        self._admission = admission
        self._scheduler = scheduler
        self._executors = executors
        self._gate = gate
        self._maker = maker
        self._background = background
        self._sla = sla
        self._callers = callers
        self._quotas = quotas
        self._longest_unread_s = longest_unread_s
        self._encodings = EncodingCalls(
            tracer, meters, preparer, admission, quotas, scheduler, executors, max_failovers
        )

    def in_use(self) -> InUse:
        return InUse(
            requests=self._admission.requests,
            tokens=self._admission.tokens,
            num_bytes=self._admission.num_bytes,
            active=self._admission.num_active,
            waiting=self._scheduler.num_waiting,
            running=self._executors.num_running,
            links=self._executors.num_links,
        )

    async def Generate(
        self, request: pb.GenerateRequest, context: CallContext, caller: Caller | None = None
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Streams the answers' pieces. Whatever is held goes back when the call ends, also while a piece is being sent.
        `caller` is who it is where the door that it came through has asked already, here and in the calls below.

        A call that is cancelled during a send leaves this generator suspended; the context's callback is what closes
        the stack then.
        """
        with ExitStack() as held:
            context.add_done_callback(lambda _: held.close())
            metadata: tuple[tuple[str, str | bytes], ...] = tuple(context.invocation_metadata() or ())
            arrived = asyncio.get_running_loop().time()
            deadline = _deadline(context.time_remaining())
            span = held.enter_context(request_span(self._tracer, self._meters, metadata))
            request_id = request_id_of(request)
            span.named(request_id)
            caller = caller or self._callers.caller(metadata)
            permit = held.enter_context(self._admission.permit(request.ByteSize()))
            wish = decode(request, request_id, self._texts)
            span.decoded(wish, caller.tenant, deadline)
            caller.check(wish.model.name, wish.qos)
            held.enter_context(self._quotas.place(caller))
            await self._quotas.take(caller, permit.tokens + _most_answer_tokens(wish))
            sla = sla_of(request, wish.qos, self._sla)
            held.enter_context(self._admission.claim(wish.request_id))
            screening = held.enter_context(self._gate.screening(wish, caller.tenant, span))
            drawn = f"{wish.request_id}.{secrets.token_hex(4)}" if request.request_id else wish.request_id
            run = Run(wish, caller.tenant, drawn, request, span.context)
            make = partial(self._maker.pieces, run, span, permit, partial(self._quotas.charge, caller), screening)
            if sla is None:
                reader = held.enter_context(reading(held, self._longest_unread_s))
                async for piece in make(deadline, held):
                    reader.sending()
                    yield encode(wish.request_id, piece)
                    reader.took()
                return
            span.promised(sla)
            run.latest, its = self._background.latest(sla, arrived, deadline), held.pop_all()
            self._background.start(run, make(run.latest, its), its)
            held.callback(run.abandon)
            stop = partial(_stop_unless_kept, run)
            reader = held.enter_context(reading(held, self._longest_unread_s, stop))
            async for response in until_sla(self._background, run, sla, arrived, deadline, span):
                reader.sending()
                yield response
                reader.took()

    async def AttachResult(
        self, request: pb.AttachResultRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.AttachResultResponse]:
        """The pieces of an answer that went on, those to come too, and then what it failed with.

        One of its tenant's calls at once, like any other; a reader who takes nothing is cut off, the answer goes on.
        """
        with ExitStack() as held:
            context.add_done_callback(lambda _: held.close())  # type: ignore[arg-type]
            caller, offset = self._caller(context), request.offset
            held.enter_context(self._quotas.place(caller))
            reader = held.enter_context(reading(held, self._longest_unread_s))
            async for piece in self._background.attach(caller.tenant, request.handle, offset):
                offset += 1
                reader.sending()
                yield pb.AttachResultResponse(piece=piece, next_offset=offset)
                reader.took()

    async def CancelResult(
        self, request: pb.CancelResultRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CancelResultResponse:
        """Ends it and drops it."""
        await self._background.cancel(self._caller(context).tenant, request.handle)
        return pb.CancelResultResponse()

    async def ListResults(
        self, request: pb.ListResultsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListResultsResponse:
        """The tenant's, newest first."""
        summaries = await self._background.list(self._caller(context).tenant)
        now_s = time.time()
        return pb.ListResultsResponse(results=[encode_result(summary, now_s) for summary in summaries])

    async def Embed(
        self, request: pb.EmbedRequest, context: CallContext, caller: Caller | None = None
    ) -> pb.EmbedResponse:
        """One vector a text, in order."""
        wish, encoded = await self._encoded(
            signals.GATEWAY_EMBED,
            request,
            context,
            caller,
            lambda request_id: decode_embed(request, request_id, self._texts),
        )
        return encode_embed(wish, encoded.values, encoded.prompt_tokens, encoded.precision)

    async def Rerank(
        self, request: pb.RerankRequest, context: CallContext, caller: Caller | None = None
    ) -> pb.RerankResponse:
        """The documents, best first."""
        wish, encoded = await self._encoded(
            signals.GATEWAY_RERANK,
            request,
            context,
            caller,
            lambda request_id: decode_rerank(request, request_id, self._texts),
        )
        return encode_rerank(wish, request.top_n, encoded.values, encoded.prompt_tokens, encoded.precision)

    async def Classify(
        self, request: pb.ClassifyRequest, context: CallContext, caller: Caller | None = None
    ) -> pb.ClassifyResponse:
        """Each text's labels, most probable first."""
        wish, encoded = await self._encoded(
            signals.GATEWAY_CLASSIFY,
            request,
            context,
            caller,
            lambda request_id: decode_classify(request, request_id, self._texts),
        )
        return encode_classify(wish, request.top_n, encoded.values, encoded.prompt_tokens, encoded.precision)

    async def _encoded(
        self,
        name: str,
        request: pb.EmbedRequest | pb.RerankRequest | pb.ClassifyRequest,
        context: CallContext,
        caller: Caller | None,
        decode: Callable[[str], EncodeWish],
    ) -> tuple[EncodeWish, Encoded]:
        metadata: tuple[tuple[str, str | bytes], ...] = tuple(context.invocation_metadata() or ())
        return await self._encodings.run(
            name,
            request,
            decode,
            lambda: caller or self._callers.caller(metadata),
            metadata,
            _deadline(context.time_remaining()),
        )

    async def ListModels(
        self, request: pb.ListModelsRequest, context: CallContext, caller: Caller | None = None
    ) -> pb.ListModelsResponse:
        """The models that the caller may use; ready where a linked executor has answered for it."""
        who = caller or self._caller(context)
        return pb.ListModelsResponse(
            models=[
                encode_model(self._texts.info(name), self._executors.serves(name))
                for name in self._texts.names()
                if who.may_see(name)
            ]
        )

    def _caller(self, context: CallContext) -> Caller:
        return self._callers.caller(tuple(context.invocation_metadata() or ()))


def _stop_unless_kept(run: Run, cause: HeadraceError) -> None:
    if not run.kept:
        run.stop(cause)


def _most_answer_tokens(wish: Wish) -> int:
    """Of all its answers; what is not given is bounded as it will be once the prompt is tokenised."""
    return wish.sampling.n * (wish.sampling.max_tokens if wish.max_tokens_given else DEFAULT_MAX_TOKENS)


def _deadline(remaining_s: float | None) -> float | None:
    """On the event loop's clock. A deadline that has passed already raises at the first wait."""
    if remaining_s is None:
        return None
    return asyncio.get_running_loop().time() + remaining_s - min(DEADLINE_MARGIN_S, remaining_s * DEADLINE_MARGIN_SHARE)
