"""Preparing in a preprocess service: one long-lived stream, opened again when it breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import numpy as np
from numpy.typing import NDArray
from opentelemetry import trace
from opentelemetry.context import Context

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.preprocess.v1 import preprocess_pb2 as pb
from headrace.api.preprocess.v1 import preprocess_pb2_grpc
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.outbox import MEMBER_OVERHEAD_BYTES, Outbox
from headrace.chassis.status import from_fault
from headrace.chassis.telemetry import to_frame
from headrace.core.errors import InvalidRequest, Unavailable
from headrace.core.role import Role
from headrace.preprocess.encoder_texts import EncoderTokens, Text
from headrace.preprocess.pipeline import Prompt

log = logging.getLogger(__name__)

WAIT_S = 10.0
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 2.0

Frames = grpc.aio.StreamStreamCall[pb.PrepareRequest, pb.PrepareResponse]


@dataclass(frozen=True, slots=True)
class _Pending:
    item: pb.PrepareItem
    answer: asyncio.Future[pb.PreparedItem]


class RemotePreparer:
    """Turns prompts into token ids by the service, which records span preprocess.prepare.

    Preparing changes nothing, so what a broken stream left unanswered is sent again on the next one.
    """

    def __init__(
        self,
        stub: "preprocess_pb2_grpc.PreprocessServiceAsyncStub",
        address: str,
        max_message_bytes: int,
        wait_s: float,
    ) -> None:
        self._stub = stub
        self._address = address
        self._max_message_bytes = max_message_bytes
        self._wait_s = wait_s
        self._pending: dict[str, _Pending] = {}
        self._outbox: Outbox[pb.PrepareItem] = Outbox(max_message_bytes)

    async def prepare(self, request_id: str, model: str, prompt: Prompt, parent: Context) -> NDArray[np.uint32]:
        """Token ids [T]. Raises InvalidRequest, ModelNotFound, or Unavailable where no answer came in time."""
        field = "prompt.text" if isinstance(prompt, str) else "chat"
        prepared = await self._prepared(to_item(request_id, model, prompt, parent), field)
        return np.frombuffer(prepared.token_ids, dtype="<u4")

    async def prepare_texts(
        self, request_id: str, model: str, texts: Sequence[Text], truncate: bool, parent: Context
    ) -> list[EncoderTokens]:
        """An encoder's texts, in order. Raises as `prepare` does."""
        prepared = await self._prepared(to_texts_item(request_id, model, texts, truncate, parent), "texts")
        return [(np.frombuffer(each.token_ids, dtype="<u4"), each.first_tokens) for each in prepared.texts]

    async def _prepared(self, item: pb.PrepareItem, field: str) -> pb.PreparedItem:
        request_id = item.request_id
        if request_id in self._pending:
            raise InvalidRequest(f"request {request_id!r} is being prepared already", field="request_id")
        if item.ByteSize() + MEMBER_OVERHEAD_BYTES > self._max_message_bytes:
            raise InvalidRequest(
                f"the prompt does not fit one message of {self._max_message_bytes} bytes",
                field=field,
                limit=f"{self._max_message_bytes} bytes",
            )
        pending = _Pending(item, asyncio.get_running_loop().create_future())
        self._pending[request_id] = pending
        self._outbox.put(item)
        try:
            async with asyncio.timeout(self._wait_s):
                return await pending.answer
        except TimeoutError:
            raise Unavailable(
                f"the preprocess service at {self._address} did not answer in {self._wait_s:g} s"
            ) from None
        finally:
            del self._pending[request_id]
            self._outbox.discard(item)

    async def run(self) -> None:
        """Keeps a stream open until cancelled."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            answered = False
            try:
                async with asyncio.TaskGroup() as tasks:
                    call: Frames = self._stub.Prepare(wait_for_ready=True)
                    writer = tasks.create_task(self._send(call))
                    try:
                        async for frame in call:
                            answered = True
                            self._receive(frame)
                    finally:
                        writer.cancel()
                        call.cancel()
            except* (grpc.aio.AioRpcError, asyncio.InvalidStateError) as broken:  # the latter: written to after its end
                first = broken.exceptions[0]
                why = first.details() if isinstance(first, grpc.aio.AioRpcError) else first
                if (task := asyncio.current_task()) and task.cancelling():
                    raise asyncio.CancelledError from None  # a group that failed too keeps it to itself
                log.warning("the preprocess stream to %s broke: %s", self._address, why)
            backoff_s = FIRST_BACKOFF_S if answered else min(2 * backoff_s, MAX_BACKOFF_S)
            await asyncio.sleep(backoff_s)

    async def _send(self, call: Frames) -> None:
        self._outbox = Outbox(self._max_message_bytes)
        for pending in self._pending.values():
            self._outbox.put(pending.item)
        async for items in self._outbox.frames():
            await call.write(pb.PrepareRequest(items=items))

    def _receive(self, frame: pb.PrepareResponse) -> None:
        for item in frame.items:
            pending = self._pending.get(item.request_id)
            if pending is None or pending.answer.done():
                continue  # its caller has gone, or it was sent twice
            if item.HasField("fault"):
                pending.answer.set_exception(from_fault(item.fault))
            else:
                pending.answer.set_result(item)


def to_item(request_id: str, model: str, prompt: Prompt, parent: Context) -> pb.PrepareItem:
    """One prompt as a member of a frame; `parent` goes with it."""
    span = trace.get_current_span(parent).get_span_context()
    item = pb.PrepareItem(request_id=request_id, model=model, trace=to_frame(span))
    if isinstance(prompt, str):
        item.text = prompt
    else:
        messages = (gateway_pb2.ChatMessage(role=turn.role, content=turn.content) for turn in prompt)
        item.chat.CopyFrom(gateway_pb2.ChatPrompt(messages=messages))
    return item


def to_texts_item(
    request_id: str, model: str, texts: Sequence[Text], truncate: bool, parent: Context
) -> pb.PrepareItem:
    """An encoder's texts as a member of a frame."""
    span = trace.get_current_span(parent).get_span_context()
    members = [pb.EncoderText(text=each.text, pair=each.pair) for each in texts]
    return pb.PrepareItem(
        request_id=request_id,
        model=model,
        trace=to_frame(span),
        texts=pb.EncoderTexts(texts=members, truncate=truncate),
    )


@asynccontextmanager
async def open_preparer(
    address: str, transport: TransportSettings, wait_s: float = WAIT_S
) -> AsyncIterator[RemotePreparer]:
    """A preparer over the service at `address`, which need not be up yet."""
    async with open_channel(address, transport, Role.PREPROCESS) as channel, asyncio.TaskGroup() as tasks:
        stub = preprocess_pb2_grpc.PreprocessServiceStub(channel)
        preparer = RemotePreparer(stub, address, transport.max_message_bytes, wait_s)
        running = tasks.create_task(preparer.run())
        try:
            yield preparer
        finally:
            running.cancel()
