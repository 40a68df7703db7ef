"""Responses: made while their caller waits, or in the background, where the gateway's results keep them. Those are
looked at, streamed from any event on, cancelled and deleted by their id, by their tenant only.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from headrace.api.gateway.v1 import gateway_pb2
from headrace.chassis.config import SlaSettings
from headrace.core.errors import Cancelled, HeadraceError, InvalidRequest, ResultNotFound
from headrace.gateway.background import Background, failure_of
from headrace.gateway.openai.exchange import Exchange
from headrace.gateway.openai.generating import promised
from headrace.gateway.openai.headers import Call
from headrace.gateway.openai.response_body import ResponseBody
from headrace.gateway.openai.response_form import RESPONSE, Event, Response
from headrace.gateway.results.port import Summary
from headrace.gateway.servicer import GatewayService
from headrace.gateway.wording import Wording

Pieces = AsyncGenerator[gateway_pb2.GenerateResponse, None]


WORDING = Wording(
    fields={"chat": "input", "chat.messages": "input", "sampling.max_tokens": "max_output_tokens"}, prefixes={}
)
"""What these bodies call what the others of this door name otherwise."""


class Responding:
    """The gateway's parts as responses use them."""

    def __init__(self, core: GatewayService, background: Background, sla: SlaSettings) -> None:
        self._core = core
        self._background = background
        self._sla = sla

    async def create(
        self, body: ResponseBody, request: gateway_pb2.GenerateRequest, call: Call, exchange: Exchange
    ) -> None:
        """Raises what refuses or fails it; once its stream has begun that is the last event."""
        try:
            await self._create(body, request, call, exchange)
        except HeadraceError as error:
            raise WORDING.of(error) from error

    async def _create(
        self, body: ResponseBody, request: gateway_pb2.GenerateRequest, call: Call, exchange: Exchange
    ) -> None:
        if body.background:
            key = await self._core.keep(request, call, call.caller)
            summary, _ = await self._background.look(call.caller.tenant, key)
            response = _response(summary)
            pieces = self._kept(key, call)
        else:
            response = Response(request.request_id, body.model, time.time(), background=False)
            pieces = self._core.Generate(promised(request, self._sla), call, call.caller)
        if body.stream:
            await _stream(response, pieces, -1, exchange)
            return
        if not body.background:
            async with aclosing(pieces):
                async for piece in pieces:
                    response.add(piece)
        await exchange.reply(response.object())

    async def retrieve(self, key: str, call: Call, exchange: Exchange) -> None:
        """As it is now, or with `stream=true` its events after number `starting_after`."""
        handle, stream = _handle(key), _flag(exchange, "stream")
        after = exchange.query.get("starting_after", "-1")
        if not (after == "-1" or (after.isascii() and after.isdigit() and len(after) <= _MAX_DIGITS)):
            raise InvalidRequest("starting_after is no number of an event", field="starting_after", limit="0 or more")
        summary, pieces = await self._background.look(call.caller.tenant, handle)
        if stream:
            await _stream(_response(summary), self._kept(handle, call), int(after), exchange)
        else:
            await exchange.reply(_whole(summary, pieces).object())

    async def cancel(self, key: str, call: Call, exchange: Exchange) -> None:
        """What had been made of it stays, unless another gateway made it."""
        handle, tenant = _handle(key), call.caller.tenant
        response = _whole(*await self._background.look(tenant, handle))
        if not response.ended:
            await self._background.stop(tenant, handle)
            try:
                response = _whole(*await self._background.look(tenant, handle))
            except ResultNotFound:
                response.error = Cancelled("the response was cancelled")
        await exchange.reply(response.object())

    async def delete(self, key: str, call: Call, exchange: Exchange) -> None:
        """Ends it where it is being made."""
        await self._background.cancel(call.caller.tenant, _handle(key))
        await exchange.reply({"id": key, "object": "response", "deleted": True})

    async def _kept(self, handle: str, call: Call) -> Pieces:
        attached = self._core.AttachResult(gateway_pb2.AttachResultRequest(handle=handle), call, call.caller)
        async with aclosing(attached) as parts:
            async for part in parts:
                yield part.piece


async def _stream(response: Response, pieces: Pieces, after: int, exchange: Exchange) -> None:
    async with aclosing(_events(response, pieces)) as events:
        async for event in events:
            if event["sequence_number"] > after:
                await exchange.event(event, event["type"])
    await exchange.end(marked=False)


async def _events(response: Response, pieces: Pieces) -> AsyncGenerator[Event, None]:
    """Where its caller waits for it, what fails it before its first piece is raised: there is no stream yet. All else
    that fails it is the last event."""
    async with aclosing(pieces):
        first = [] if response.background else [await anext(pieces)]
        for event in response.opening():
            yield event
        try:
            async for piece in _chain(first, pieces):
                response.add(piece)
                if piece.text:
                    yield response.delta(piece)
        except HeadraceError as error:
            response.error = error
    for event in response.closing():
        yield event


async def _chain(
    first: Sequence[gateway_pb2.GenerateResponse], rest: Pieces
) -> AsyncIterator[gateway_pb2.GenerateResponse]:
    for piece in first:
        yield piece
    async for piece in rest:
        yield piece


def _response(summary: Summary) -> Response:
    return Response(summary.handle, summary.model, summary.created_s, background=True)


def _whole(summary: Summary, pieces: list[gateway_pb2.GenerateResponse]) -> Response:
    response = _response(summary)
    for piece in pieces:
        response.add(piece)
    response.error = failure_of(summary)
    return response


_MAX_DIGITS = 12


def _handle(key: str) -> str:
    """Raises ResultNotFound."""
    if not key.startswith(RESPONSE):
        raise ResultNotFound("no response of this id", field="response_id")
    return key.removeprefix(RESPONSE)


def _flag(exchange: Exchange, name: str) -> bool:
    given = exchange.query.get(name, "false")
    if given not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false", field=name, limit="true or false")
    return bool(given == "true")
