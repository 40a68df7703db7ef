"""Hashes of how prompts begin: each covers all tokens up to a border, so equal hashes mean equal beginnings."""

from collections.abc import Iterator
from hashlib import blake2b

PREFIX_TOKENS = 32
"""Tokens between two borders of the hashes that gateway, scheduler and executor share."""
MOST_PREFIXES = 128
"""Of one prompt, so many are told: the first 4,096 tokens."""
_TOKEN_BYTES = 4


def chain(parent: bytes, tokens: bytes) -> bytes:
    """The hash (16 bytes, BLAKE2b of RFC 7693) of a beginning: from its hash up to the last border, and the tokens
    since."""
    return blake2b(parent + tokens, digest_size=16).digest()


def root(seed: bytes) -> bytes:
    """The hash of no tokens at all."""
    return chain(b"", seed)


def chained(seed: bytes, tokens: bytes, step_tokens: int, most: int | None = None) -> Iterator[bytes]:
    """The hash at each border of `tokens` (little-endian uint32), every `step_tokens`; a rest has none."""
    step_bytes = step_tokens * _TOKEN_BYTES
    count = len(tokens) // step_bytes
    digest = root(seed)
    for index in range(count if most is None else min(count, most)):
        digest = chain(digest, tokens[index * step_bytes : (index + 1) * step_bytes])
        yield digest


def prefix_hashes(model: str, tokens: bytes) -> tuple[int, ...]:
    """What the scheduler knows a prompt's beginnings by: 64 bits for every PREFIX_TOKENS tokens (little-endian uint32),
    MOST_PREFIXES at most. A collision costs a wrong placement, never a wrong answer."""
    digests = chained(model.encode(), tokens, PREFIX_TOKENS, MOST_PREFIXES)
    return tuple(int.from_bytes(digest[:8], "little") for digest in digests)
