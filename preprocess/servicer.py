"""The Prepare stream: items in, each answered in a frame when it is done, in any order; and the Screen call."""

import asyncio
from collections.abc import AsyncIterator

import grpc

from headrace.api.preprocess.v1 import preprocess_pb2 as pb
from headrace.api.preprocess.v1 import preprocess_pb2_grpc as pb_grpc
from headrace.api.types.v1 import types_pb2
from headrace.chassis.interceptors import as_error
from headrace.chassis.outbox import MEMBER_OVERHEAD_BYTES, Outbox
from headrace.chassis.status import to_fault
from headrace.chassis.telemetry import from_frame
from headrace.core.errors import EngineNotReady, InvalidRequest
from headrace.preprocess.encoder_texts import Pair
from headrace.preprocess.inline import InlinePreparer
from headrace.preprocess.screen.inline import InlineScreener

SERVICE = pb.DESCRIPTOR.services_by_name["PreprocessService"].full_name
MAX_ITEMS_IN_FLIGHT = 256
"""Items of one stream between read and answered; beyond that it is not read, and flow control holds the sender."""

_Context = grpc.aio.ServicerContext[pb.PrepareRequest, pb.PrepareResponse]


class PreprocessServicer(pb_grpc.PreprocessServiceServicer):
    """Answers Prepare streams until `drain`; items already read are answered then, and the streams end."""

    def __init__(
        self, preparer: InlinePreparer, max_message_bytes: int, screener: InlineScreener | None = None
    ) -> None:
        self._preparer = preparer
        self._screener = screener
        self._max_message_bytes = max_message_bytes
        self._draining = asyncio.Event()

    def drain(self) -> None:
        self._draining.set()

    async def Screen(
        self, request: pb.ScreenRequest, context: "grpc.aio.ServicerContext[pb.ScreenRequest, pb.ScreenResponse]"
    ) -> pb.ScreenResponse:
        if self._screener is None:
            raise EngineNotReady("this service has no screen: screen.policy is off here")
        if not request.texts:
            raise InvalidRequest("there is no text to judge", field="texts", limit="1 text at least")
        verdict = await self._screener.screen(request.request_id, request.texts, from_frame(request.trace))
        return pb.ScreenResponse(
            verdict=types_pb2.ScreenVerdict(category=verdict.category, score=verdict.score, model=verdict.model)
        )

    async def Prepare(
        self, request_iterator: AsyncIterator[pb.PrepareRequest], context: _Context
    ) -> AsyncIterator[pb.PrepareResponse]:
        answers: Outbox[pb.PreparedItem] = Outbox(self._max_message_bytes)
        slots = asyncio.Semaphore(MAX_ITEMS_IN_FLIGHT)
        answering = asyncio.create_task(self._answer_all(request_iterator, answers, slots))
        try:
            async for frame in answers.frames():
                yield pb.PrepareResponse(items=frame)
                for _ in frame:
                    slots.release()
            await answering
        finally:
            answering.cancel()
            await asyncio.wait((answering,))
            if not answering.cancelled():
                answering.exception()  # a caller that has gone is not told of a frame that was wrong

    async def _answer_all(
        self,
        requests: AsyncIterator[pb.PrepareRequest],
        answers: Outbox[pb.PreparedItem],
        slots: asyncio.Semaphore,
    ) -> None:
        try:
            async with asyncio.TaskGroup() as items:
                while (request := await self._next(requests)) is not None:
                    for item in request.items:
                        await slots.acquire()
                        items.create_task(self._answer(item, answers))
        finally:
            answers.close()

    async def _next(self, requests: AsyncIterator[pb.PrepareRequest]) -> pb.PrepareRequest | None:
        """The stream's next frame; None where it has ended or the service drains."""
        frame, draining = asyncio.ensure_future(anext(requests, None)), asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait((frame, draining), return_when=asyncio.FIRST_COMPLETED)
            return frame.result() if frame.done() else None
        finally:
            frame.cancel()
            draining.cancel()

    async def _answer(self, item: pb.PrepareItem, answers: Outbox[pb.PreparedItem]) -> None:
        try:
            answer = await self._prepared(item)
        except Exception as error:  # one item's fault is not the stream's
            answer = pb.PreparedItem(request_id=item.request_id, fault=to_fault(as_error(error)))
        answers.put(answer)

    async def _prepared(self, item: pb.PrepareItem) -> pb.PreparedItem:
        if item.WhichOneof("prompt") is None:
            raise InvalidRequest("the item has no prompt", field="prompt", limit="text or chat")
        answer = pb.PreparedItem(request_id=item.request_id)
        parent = from_frame(item.trace)
        if item.HasField("texts"):
            texts = [Pair(each.text, each.pair if each.HasField("pair") else None) for each in item.texts.texts]
            for token_ids, first_tokens in await self._preparer.prepare_texts(
                item.request_id, item.model, texts, item.texts.truncate, parent
            ):
                answer.texts.add(token_ids=token_ids.astype("<u4", copy=False).tobytes(), first_tokens=first_tokens)
        else:
            prompt = item.text if item.HasField("text") else item.chat.messages
            token_ids = await self._preparer.prepare(item.request_id, item.model, prompt, parent)
            answer.token_ids = token_ids.astype("<u4", copy=False).tobytes()
        if answer.ByteSize() + MEMBER_OVERHEAD_BYTES > self._max_message_bytes:
            raise InvalidRequest(
                f"the prompt's tokens, {answer.ByteSize()} bytes, do not fit one message",
                field="prompt",
                limit=f"{self._max_message_bytes} bytes",
            )
        return answer
