"""API keys: how they are made and how they are known again. A key itself is kept nowhere.

SHA-256 without salt is right here: a key is 32 random bytes, which nobody guesses however fast the hash is.
"""

import secrets
from hashlib import sha256

PREFIX = "hr_"
KEY_BYTES = 32


def new_key() -> str:
    """Url-safe text."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest(key: str) -> str:
    """SHA-256 in lower-case hex, as in the file of keys."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
