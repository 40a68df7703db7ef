"""How a command reaches a running suite: the certificates that it shows, and what it says where nobody listens."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from headrace.chassis.config import TlsSettings, load_settings
from headrace.chassis.status import said_by_service
from headrace.core.errors import Unavailable
from headrace.core.role import Role


def tls(role: Role, config: Path | None = None) -> TlsSettings | None:
    """What the settings say of TLS, for a caller of this role: a file's, under HEADRACE_TRANSPORT__TLS__DIR."""
    return load_settings(config).transport.of(role).tls


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Raises Unavailable with how to start a suite where nobody answers within the block; the gateway's own word, such
    as that no executor is there, is left as it is."""
    try:
        yield
    except Unavailable as error:
        call = error.__cause__
        if not isinstance(call, grpc.RpcError) or said_by_service(call):
            raise
        raise Unavailable(f"nothing answers at {address}; start a suite with: headrace up") from error
