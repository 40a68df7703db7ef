"""What a command says where nobody listens at the gateway's address."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from headrace.chassis.status import said_by_service
from headrace.core.errors import Unavailable


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
