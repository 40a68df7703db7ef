"""ModelStreamInfer: many requests on one stream, each answered as it comes, errors among the answers.

A request that fails does not end the stream: its error is a response, as the protocol has it. Clients that would
rather have the status say so in the call's metadata.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from headrace.api.inference import inference_pb2 as pb
from headrace.chassis.interceptors import as_error
from headrace.core.errors import Draining, HeadraceError
from headrace.gateway.reader import unread

MAX_AT_ONCE = 64
"""Requests of one stream that are answered at a time; more wait unread."""
STRICT_KEY = "triton_grpc_error"

Answering = Callable[[pb.ModelInferRequest], AsyncGenerator[pb.ModelInferResponse, None]]


class Streams:
    """The streams that are open. A peer that takes nothing for `longest_write_s` is cut off."""

    def __init__(self, longest_write_s: float) -> None:
        self._longest_write_s = longest_write_s
        self._readers: set[asyncio.Task[None]] = set()
        self._leaving = False

    async def serve(
        self,
        requests: AsyncIterator[pb.ModelInferRequest],
        answering: Answering,
        write: Callable[[pb.ModelStreamInferResponse], Awaitable[None]],
        strict: bool,
    ) -> None:
        """Until the peer has sent its last and has its answers. `strict`: the first error ends the stream.

        Raises Overloaded for a peer that does not read, Draining where the gateway leaves.
        """
        places, writing = asyncio.Semaphore(MAX_AT_ONCE), asyncio.Lock()

        async def answer(request: pb.ModelInferRequest) -> None:
            async with aclosing(_responses(request, answering(request), strict)) as responses:
                async for response in responses:
                    async with writing:
                        await self._write(write, response)
            places.release()

        async def read() -> None:
            async for request in requests:
                await places.acquire()
                tasks.create_task(answer(request))

        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(read())
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        if self._leaving:
            raise Draining("the service is leaving")

    def leave(self) -> None:
        """Streams take no more requests, and end once those taken are answered."""
        self._leaving = True
        for reader in self._readers:
            reader.cancel()

    async def _write(
        self, write: Callable[[pb.ModelStreamInferResponse], Awaitable[None]], response: pb.ModelStreamInferResponse
    ) -> None:
        try:
            async with asyncio.timeout(self._longest_write_s) as limit:
                await write(response)
        except TimeoutError:
            if not limit.expired():
                raise
            raise unread(self._longest_write_s) from None


async def _responses(
    request: pb.ModelInferRequest, answers: AsyncGenerator[pb.ModelInferResponse, None], strict: bool
) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
    """The answers, and an error as the last of them."""
    async with aclosing(answers):
        try:
            async for answer in answers:
                yield pb.ModelStreamInferResponse(infer_response=answer)
        except Exception as error:
            if strict:
                raise
            yield _failed(request, as_error(error))


def _failed(request: pb.ModelInferRequest, error: HeadraceError) -> pb.ModelStreamInferResponse:
    response = pb.ModelStreamInferResponse(error_message=error.message)
    about = response.infer_response
    about.model_name, about.id = request.model_name, request.id
    about.parameters["triton_final_response"].bool_param = True
    for name, value in (("reason", error.reason), ("field", error.field), ("limit", error.limit)):
        if value:
            about.parameters[name].string_param = value
    if error.retry_after_s:
        about.parameters["retry_after_ms"].int64_param = round(error.retry_after_s * 1000)
    return response
