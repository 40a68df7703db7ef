"""Who may come through the door, by the certificate of the connection; what their key allows is asked later."""

from typing import TYPE_CHECKING

from pydantic_core import to_json
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.chassis.access import HTTP, admit
from headrace.chassis.identity import roles_of_connection
from headrace.core.errors import HeadraceError
from headrace.gateway.openai.failure import failure

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATH = "/health"


def proving(domain: str) -> type[H11Protocol]:
    """The protocol of a port whose callers show certificates."""

    class Proving(H11Protocol):
        def connection_made(self, transport: "asyncio.Transport") -> None:  # type: ignore[override]
            super().connection_made(transport)
            try:
                admit(roles_of_connection(transport.get_extra_info("ssl_object"), domain), HTTP, "this port")
            except HeadraceError as error:
                self.app = _refusing(self.app, error)  # type: ignore[assignment,arg-type,unused-ignore]

    return Proving


def _refusing(application: "ASGIApp", error: HeadraceError) -> "ASGIApp":
    failed = failure(error)

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope.get("path") == OPEN_PATH:
            await application(scope, receive, send)
            return
        headers = {"content-type": "application/json", **failed.headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": failed.status, "headers": raw})
        await send({"type": "http.response.body", "body": to_json(failed.body)})

    return answer
