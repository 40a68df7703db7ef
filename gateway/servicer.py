"""The public service: one call from permit to last piece. What a call takes, its exit stack gives back."""

import time
from collections.abc import AsyncGenerator, Callable
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
from headrace.core.errors import HeadraceError, Overloaded
from headrace.gateway.admission import Admission
from headrace.gateway.background import Background
from headrace.gateway.cache.answers import AnswerCache
from headrace.gateway.codec import (
    encode,
    encode_model,
    encode_result,
)
from headrace.gateway.constraint_check import ConstraintChecks
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
from headrace.gateway.generate_call import GenerateCalls, deadline_of
from headrace.gateway.making import Maker
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.ports import CallContext, Preparer, TextModels
from headrace.gateway.reader import reading
from headrace.gateway.results.port import RETRY_AFTER_S
from headrace.gateway.run import Run
from headrace.gateway.scheduler_link import SchedulerLink
from headrace.gateway.screen_gate import ScreenGate
from headrace.gateway.sla_stream import until_sla
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.callers import Callers
from headrace.gateway.tenants.quotas import Quotas


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
        cache: AnswerCache | None,
        constraints: ConstraintChecks,
        record_prompts: bool = False,
    ) -> None:
        self._texts = texts
        self._admission = admission
        self._scheduler = scheduler
        self._executors = executors
        self._background = background
        self._callers = callers
        self._quotas = quotas
        self._longest_unread_s = longest_unread_s
        self._calls = GenerateCalls(
            tracer, meters, texts, admission, callers, quotas, gate, maker, sla, cache, constraints, record_prompts
        )
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
            begun = await self._calls.begin(request, context, caller, held)
            run, sla = begun.run, begun.sla
            if sla is None:
                reader = held.enter_context(reading(held, self._longest_unread_s))
                async for piece in begun.make(begun.deadline, held):
                    reader.sending()
                    yield encode(run.wish.request_id, piece)
                    reader.took()
                return
            begun.span.promised(sla)
            run.latest, its = self._background.latest(sla, begun.arrived, begun.deadline), held.pop_all()
            self._background.start(run, begun.make(run.latest, its), its)
            held.callback(run.abandon)
            stop = partial(_stop_unless_kept, run)
            reader = held.enter_context(reading(held, self._longest_unread_s, stop))
            async for response in until_sla(self._background, run, sla, begun.arrived, begun.deadline, begun.span):
                reader.sending()
                yield response
                reader.took()

    async def keep(self, request: pb.GenerateRequest, context: CallContext, caller: Caller) -> str:
        """Begins an answer that nobody waits for: at batch priority, and kept from the start. Its handle. For doors;
        raises what Generate does, and Overloaded where it cannot be kept."""
        with ExitStack() as held:
            begun = await self._calls.begin(request, context, caller, held)
            run, its = begun.run, held.pop_all()
            run.latest = self._background.longest(begun.arrived, begun.deadline)
            self._background.start(run, begun.make(run.latest, its), its)
            handle = await self._background.keep(run)
            if handle is None:
                full = Overloaded(
                    "no answer can be kept now: the results are full, or away", retry_after_s=RETRY_AFTER_S
                )
                run.stop(full)
                raise full
            begun.span.kept(handle)
            return handle

    async def AttachResult(
        self, request: pb.AttachResultRequest, context: CallContext, caller: Caller | None = None
    ) -> AsyncGenerator[pb.AttachResultResponse, None]:
        """The pieces of an answer that went on, those to come too, and then what it failed with.

        One of its tenant's calls at once, like any other; a reader who takes nothing is cut off, the answer goes on.
        """
        with ExitStack() as held:
            context.add_done_callback(lambda _: held.close())
            caller, offset = caller or self._caller(context), request.offset
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
            deadline_of(context),
            through_door=caller is not None,
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
