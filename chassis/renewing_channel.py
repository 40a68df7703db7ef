"""A channel that follows its certificates: calls that begin after a change go over a connection made with the new ones.

gRPC's channels keep for life what they were opened with. Calls that run stay where they are until they end.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from headrace.chassis.certificates import LOOK_S, Certificates, Pem

Open = Callable[[Pem], grpc.aio.Channel]


class _Line:
    """A channel with the certificates that it was opened with, and how many calls run on it."""

    def __init__(self, pem: Pem, channel: grpc.aio.Channel) -> None:
        self.pem = pem
        self.channel = channel
        self.calls: dict[tuple[Any, ...], Any] = {}
        self.num_running = 0


class RenewingChannel(grpc.aio.Channel):
    """Closing it cancels the calls that run, as with any channel."""

    def __init__(self, certificates: Certificates, open_with: Open) -> None:
        self._certificates = certificates
        self._open_with = open_with
        pem = certificates.current()
        self._line = _Line(pem, open_with(pem))
        self._retired: set[_Line] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def _now(self) -> _Line:
        pem = self._certificates.current()
        if pem is not self._line.pem:
            old, self._line = self._line, _Line(pem, self._open_with(pem))
            self._retired.add(old)
            self._close_idle(old)
        return self._line

    def _close_idle(self, line: _Line) -> None:
        if line in self._retired and not line.num_running:
            self._retired.remove(line)
            closing = asyncio.ensure_future(line.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _multicallable(self, kind: str, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        def begin(*given: Any, **options: Any) -> Any:
            line = self._now()
            if (kind, *arguments) not in line.calls:
                line.calls[(kind, *arguments)] = getattr(line.channel, kind)(*arguments)
            call = line.calls[(kind, *arguments)](*given, **options)
            line.num_running += 1

            def ended(_: Any) -> None:
                line.num_running -= 1
                self._close_idle(line)

            call.add_done_callback(ended)
            return call

        return begin

    def unary_unary(self, *arguments: Any, **more: Any) -> Any:
        return self._multicallable("unary_unary", _positional(*arguments, **more))

    def unary_stream(self, *arguments: Any, **more: Any) -> Any:
        return self._multicallable("unary_stream", _positional(*arguments, **more))

    def stream_unary(self, *arguments: Any, **more: Any) -> Any:
        return self._multicallable("stream_unary", _positional(*arguments, **more))

    def stream_stream(self, *arguments: Any, **more: Any) -> Any:
        return self._multicallable("stream_stream", _positional(*arguments, **more))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._now().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._now().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Looks at the certificates meanwhile: those that it waits with may be refused for ever."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S) as patience:
                    return await self._now().channel.channel_ready()
            except TimeoutError:
                if not patience.expired():
                    raise

    async def close(self, grace: float | None = None) -> None:
        lines = (self._line, *self._retired)
        self._retired.clear()
        await asyncio.gather(*(line.channel.close(grace) for line in lines), *self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _positional(
    method: str,
    request_serializer: Any = None,
    response_deserializer: Any = None,
    _registered_method: bool | None = False,
) -> tuple[Any, ...]:
    return method, request_serializer, response_deserializer, _registered_method
