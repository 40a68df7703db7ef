"""The HTTP port of GET /metrics, plain or with TLS. A handshake takes place in its caller's own thread."""

import logging
import socket
import threading
from collections.abc import Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from headrace.chassis.access import METRICS, admit
from headrace.chassis.certificates import Certificates
from headrace.chassis.config import TlsSettings
from headrace.chassis.credentials import server_context
from headrace.chassis.identity import roles_of_connection
from headrace.chassis.status import code_of
from headrace.core.errors import HeadraceError, Unauthenticated

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 30.0
"""For a caller to say what it wants."""


class _Handler(WSGIRequestHandler):
    timeout = LONGEST_WAIT_S

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingWSGIServer):
    """Also the thread of a call that hangs does not keep the process."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape from %s failed", client_address, exc_info=True)


def start_scrape_port(
    host: str, port: int, registry: CollectorRegistry, tls: TlsSettings | None
) -> tuple[ThreadingWSGIServer, threading.Thread]:
    """Serves in the thread until `shutdown`. Raises OSError; ConfigError where the certificates are not to be had."""
    certificates = Certificates(tls, server=True) if tls else None
    answer: Any = make_wsgi_app(registry)
    if certificates:
        answer, handler = _admitting(answer), _proving(certificates.domain)
    else:
        handler = _Handler
    kind = type("_Server6", (_Server,), {"address_family": socket.AF_INET6}) if ":" in host else _Server
    server: ThreadingWSGIServer = make_server(host, port, answer, kind, handler)
    if certificates:
        context = server_context(certificates, ask_callers=True)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread


def _proving(domain: str) -> type[_Handler]:
    class Proving(_Handler):
        def get_environ(self) -> dict[str, Any]:
            return super().get_environ() | {"headrace.roles": roles_of_connection(self.connection, domain)}

    return Proving


def _admitting(application: Any) -> Any:
    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            admit(environ["headrace.roles"], METRICS, "/metrics")
        except HeadraceError as error:
            status = "401 Unauthorized" if isinstance(error, Unauthenticated) else "403 Forbidden"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{code_of(error).name}: {error.message}\n".encode()]
        answered: Iterable[bytes] = application(environ, start_response)
        return answered

    return answer
