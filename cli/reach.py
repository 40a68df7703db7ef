"""What a command says where nobody listens at the gateway's address."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import Unavailable


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Raises Unavailable with how to start a suite where nobody answers within the block; the gateway's own word, such
    as that no executor is there, is left as it is."""
    try:
        yield
    except Unavailable as error:
        if type(error) is not Unavailable:
            raise
        raise Unavailable(f"nothing answers at {address}; start a suite with: headrace up") from error
