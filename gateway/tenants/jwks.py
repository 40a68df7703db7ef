"""The issuer's public keys (JSON Web Key Set, RFC 7517): from a file or a URL, kept, and read again within bounds."""

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt

from headrace.chassis.config import TokenSettings
from headrace.core.errors import ConfigError, Unavailable
from headrace.gateway.tenants.wording import AUTHORIZATION, refused

log = logging.getLogger(__name__)

LOOK_S = 1.0
FETCH_S = 5.0
"""Longest wait for the URL."""
MAX_BYTES = 2**20
PUBLIC = ("RSA", "EC", "OKP")
"""Kinds of keys that are used: a shared secret in a public set is nobody's secret."""


class KeySet:
    """Looked up on the event loop, read by `watch`. Raises ConfigError at once where a file is faulty."""

    def __init__(self, settings: TokenSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._version: object = None
        self._read_at = -float("inf")
        self._tried_at = -float("inf")
        self._missed = False
        if not settings.is_url:
            self._read()

    def key(self, key_id: str | None) -> jwt.PyJWK:
        """The key of this id; without an id the only one. Raises Unauthenticated, Unavailable where there are none."""
        if not self._keys or self._now() - self._read_at > self._settings.keep_s:
            raise Unavailable("the token issuer's keys are not here", field=AUTHORIZATION, limit="tenants.tokens.jwks")
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if key_id not in self._keys:
            self._missed = True  # it may be new: looked for sooner than it would have been
            raise refused("this token's key is not known", limit="a key of the issuer's in force")
        return self._keys[key_id]

    def refresh(self) -> None:
        """Reads the keys where it is time. What goes wrong is logged, and the keys read before stay in force."""
        if not self._due():
            return
        self._missed, self._tried_at = False, self._now()
        try:
            self._read()
        except ConfigError as error:
            log.error("the token issuer's keys read before stay in force: %s", error.message)

    async def watch(self) -> None:
        """Refreshes for as long as it runs."""
        while True:
            await asyncio.to_thread(self.refresh)
            await asyncio.sleep(LOOK_S)

    def _due(self) -> bool:
        if not self._settings.is_url:
            return True
        waited = self._now() - self._tried_at
        wanted = self._missed or not self._keys
        return waited >= (self._settings.min_refresh_s if wanted else self._settings.refresh_s)

    def _read(self) -> None:
        if self._settings.is_url:
            self._take(_fetched(self._settings.jwks))
            return
        path = Path(self._settings.jwks)
        try:
            stat = path.stat()
            version = stat.st_mtime_ns, stat.st_size, stat.st_ino
            if version != self._version:
                content = path.read_bytes()
                self._version = version
                self._take(content)
        except OSError as error:
            raise ConfigError(f"tenants.tokens.jwks: {path}: {error.strerror}", field="tenants.tokens.jwks") from None
        self._read_at = self._now()

    def _take(self, content: bytes) -> None:
        self._keys = parse(content, self._settings.jwks)
        self._read_at = self._now()
        log.info("%s has %d keys", self._settings.jwks, len(self._keys))


def parse(content: bytes, source: str) -> Mapping[str | None, jwt.PyJWK]:
    """Public signing keys by id. Raises ConfigError where there is none."""
    try:
        entries: Any = json.loads(content)["keys"]
        public = [each for each in entries if each.get("kty") in PUBLIC and each.get("use", "sig") == "sig"]
        found = jwt.PyJWKSet(public).keys
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, jwt.PyJWTError):
        raise ConfigError(
            f"{source} has no public keys in the form of a JWK set", field="tenants.tokens.jwks"
        ) from None
    return {key.key_id: key for key in found}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _fetched(url: str) -> bytes:
    """Raises ConfigError where it does not answer in time, or with too much."""
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=FETCH_S) as answer:
            content: bytes = answer.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url}: {error}", field="tenants.tokens.jwks") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{url} has over {MAX_BYTES} bytes", field="tenants.tokens.jwks")
    return content
