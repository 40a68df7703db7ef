"""The HTTP server: uvicorn in the gateway's own process and event loop, which leaves signals to the process."""

import asyncio
import math
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.chassis.certificates import Certificates
from headrace.chassis.config import TlsSettings
from headrace.chassis.credentials import server_context
from headrace.chassis.server import warn_if_open
from headrace.core.errors import ConfigError
from headrace.gateway.openai.admitting import proving
from headrace.gateway.openai.leaving import Leaving

KEEP_ALIVE_S = 75
"""An idle connection stays open longer than clients keep theirs, so that none is closed under a new request."""
_BACKLOG = 1024
SEND_BUFFER_BYTES = 2**18
"""What the system keeps for a slow reader, about; by itself it would keep megabytes."""
FAREWELL_S = 1.0
"""For those whose answer is ended unfinished to hear so."""


@dataclass(frozen=True, slots=True)
class HttpHandle:
    """`leave` is called when the gateway begins to: no new connection, running requests end."""

    address: str
    leave: Callable[[], None]


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    application: ASGIApp,
    listen: str,
    leaving: Leaving,
    unread_s: float,
    drain_s: float,
    max_header_bytes: int = 2**14,
    tls: TlsSettings | None = None,
    ask_callers: bool = True,
) -> AsyncIterator[HttpHandle]:
    """Serves until the block ends, then waits up to `drain_s` from `leave` on. Raises ConfigError where the address
    cannot be bound, or the certificates are not to be had."""
    certificates = Certificates(tls, server=True) if tls else None
    if certificates is None:
        warn_if_open(listen)
    with _bound(listen, unread_s) as listener:
        server = _Server(
            uvicorn.Config(
                application,
                lifespan="off",
                ws="none",
                http=proving(certificates.domain) if certificates and ask_callers else H11Protocol,
                ssl_context_factory=partial(_context, certificates, ask_callers) if certificates else None,
                h11_max_incomplete_event_size=max_header_bytes,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(drain_s + FAREWELL_S),
            )
        )

        def leave() -> None:
            leaving.begin(drain_s)
            server.should_exit = True

        host, _, _ = listen.rpartition(":")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(server.serve(sockets=[listener]), name="http")
            try:
                yield HttpHandle(f"{host}:{listener.getsockname()[1]}", leave)
            finally:
                leave()
                await running


def _context(certificates: Certificates, ask_callers: bool, *_: object) -> ssl.SSLContext:
    return server_context(certificates, ask_callers)


@contextmanager
def _bound(listen: str, unread_s: float) -> Iterator[socket.socket]:
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {listen}: the address is in use or not ours") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # connections inherit it
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Ends a connection whose peer takes nothing, also of what is left to send when it is closed. Twice as long
            # as the door itself waits: else a reader that is cut off would seem to have left.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(2 * unread_s * 1000))
        yield listener
