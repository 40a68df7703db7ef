"""One request over HTTP and its answer: JSON once, or a stream of server-sent events. A peer that leaves is noticed.

Every wait for the peer is bounded: for its body, and for it to take what is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pydantic_core import to_json

from headrace.chassis.interceptors import as_error
from headrace.core.errors import DeadlineMissed, HeadraceError, InvalidRequest
from headrace.gateway.openai.failure import failure
from headrace.gateway.openai.headers import REQUEST_ID, Asked, read_asked
from headrace.gateway.openai.leaving import Leaving
from headrace.gateway.reader import unread

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Handler = Callable[["Exchange"], Awaitable[None]]


class _Left(Exception):
    """The peer has gone."""


class Exchange:
    """`body` is the whole of the request's. Answer by `reply`, or by `event`s and `end`."""

    def __init__(self, scope: "Scope", receive: "Receive", send: "Send", longest_wait_s: float) -> None:
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.told: dict[str, str] = {}
        """Headers of the answer, for as long as it has not begun."""
        self.query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        self.body = b""
        self._receive = receive
        self._send = send
        self._longest_wait_s = longest_wait_s
        self._streaming = False
        self._stuck = False
        self._whole = False
        self._request_id = ""

    def asked(self) -> Asked:
        """What the headers say. Raises InvalidRequest."""
        asked = read_asked(self.headers)
        self._request_id = asked.request_id
        return asked

    def check_headers(self, max_bytes: int) -> None:
        """Raises InvalidRequest where they are longer together."""
        num_bytes = sum(len(name) + len(value) for name, value in self.headers.items())
        if num_bytes > max_bytes:
            limit = f"{max_bytes} bytes"
            raise InvalidRequest(
                f"headers have {num_bytes} bytes, must have {limit} at most", field="headers", limit=limit
            )

    async def read(self, max_bytes: int) -> None:
        """Takes the body, all of it: a peer that is still sending would not hear the answer. Raises InvalidRequest
        where it is longer, DeadlineMissed where it takes too long."""
        chunks, num_bytes, more = list[bytes](), 0, True
        try:
            async with asyncio.timeout(self._longest_wait_s):
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise _Left
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    num_bytes += len(chunk)
                    if num_bytes <= max_bytes:
                        chunks.append(chunk)
        except TimeoutError:
            limit = f"{self._longest_wait_s:g} s"
            raise DeadlineMissed(f"the body was not there within {limit}", field="body", limit=limit) from None
        self._whole = True
        if num_bytes > max_bytes:
            raise InvalidRequest(
                f"body has {num_bytes} bytes, must have {max_bytes} at most", field="body", limit=f"{max_bytes} bytes"
            )
        self.body = b"".join(chunks)

    async def reply(self, payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """The whole answer."""
        await self._start(status, {"content-type": "application/json"} | dict(headers or {}))
        await self._write(to_json(payload), last=True)

    async def event(self, payload: Any, name: str = "") -> None:
        """One event of a stream, which begins with the first. Raises Overloaded where the peer takes nothing."""
        if not self._streaming:
            self._streaming = True
            await self._start(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
        named = f"event: {name}\n".encode() if name else b""
        await self._write(named + b"data: " + to_json(payload) + b"\n\n", last=False)

    async def end(self, *, marked: bool = True) -> None:
        """The stream's end; the older streams of OpenAI's have a mark there."""
        await self._write(b"data: [DONE]\n\n" if marked else b"", last=True)

    async def fail(self, error: HeadraceError) -> None:
        """The answer to a request that failed; within a stream its last event. A peer that takes nothing gets none:
        its connection is closed."""
        if self._stuck:
            return
        failed = failure(error)
        if self._streaming:
            await self.event(failed.body)
            await self.end()
        else:
            await self.reply(failed.body, failed.status, failed.headers)

    async def until_left(self) -> None:
        """Raises once the peer has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise _Left

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        more = self.told | ({REQUEST_ID: self._request_id} if self._request_id else {})
        if not self._whole:
            more["connection"] = "close"  # where its body ends, nobody knows
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in {**headers, **more}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _write(self, data: bytes, last: bool) -> None:
        try:
            async with asyncio.timeout(self._longest_wait_s) as limit:
                await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        except TimeoutError:
            if not limit.expired():
                raise
            self._stuck = True
            raise unread(self._longest_wait_s) from None


class Endpoint:
    """An ASGI application of one handler: what it raises becomes the answer, and a peer that leaves ends it, as the
    gateway's own end does."""

    def __init__(
        self, handler: Handler, leaving: Leaving, max_bytes: int, max_header_bytes: int, longest_wait_s: float
    ) -> None:
        self._handler = handler
        self._leaving = leaving
        self._max_bytes = max_bytes
        self._max_header_bytes = max_header_bytes
        self._longest_wait_s = longest_wait_s

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        exchange = Exchange(scope, receive, send, self._longest_wait_s)
        try:
            await exchange.read(self._max_bytes)
            exchange.check_headers(self._max_header_bytes)
            self._leaving.check()
            async with asyncio.TaskGroup() as tasks:
                watching = [tasks.create_task(wait) for wait in (exchange.until_left(), self._leaving.over())]
                await self._handler(exchange)
                for each in watching:
                    each.cancel()
        except _Left:
            return
        except Exception as error:
            if isinstance(error, ExceptionGroup) and error.subgroup(_Left):
                return
            await exchange.fail(as_error(error))
