"""Who a call comes from: by its API key or token where there are any, else by what its metadata says.

The file of keys is looked at once a second and read again when it has changed. A faulty one is logged, and what was
read before stays in force.
"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.chassis.config import TenantsSettings, TokenSettings
from headrace.core.errors import ConfigError, PermissionDenied
from headrace.gateway.codec import TENANT_KEY, tenant
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.key import digest
from headrace.gateway.tenants.key_file import KnownCallers, read_callers
from headrace.gateway.tenants.wording import AUTHORIZATION, refused

if TYPE_CHECKING:
    from headrace.gateway.tenants.jwks import KeySet
    from headrace.gateway.tenants.token import Tokens

log = logging.getLogger(__name__)

LOOK_S = 1.0
SCHEME = "bearer "
TOKEN_DOTS = 2
"""A token has so many, a key none."""

Metadata = Iterable[tuple[str, str | bytes]]


class Callers:
    """Raises ConfigError at once where the file of keys or that of the issuer's is faulty, or PyJWT is missing."""

    def __init__(self, settings: TenantsSettings) -> None:
        self._default = settings.default
        self._path = settings.keys_file
        self._settings = settings.tokens
        self._seen = _version(self._path) if self._path else None
        self._known = self._read(self._path) if self._path else KnownCallers({}, {})
        self._tokens: Tokens | None = None
        self._keys: KeySet | None = None
        if settings.tokens:
            self._tokens, self._keys = _tokens(settings.tokens)

    def caller(self, metadata: Metadata) -> Caller:
        """Raises Unauthenticated without a known key or sound token, PermissionDenied for another tenant's name,
        InvalidRequest, and what `Tokens.tenant` raises."""
        if self._path is None and self._tokens is None:
            return Caller(tenant(metadata), self._default)
        given = dict(metadata)
        authorization = given.get(AUTHORIZATION, "")
        if not isinstance(authorization, str) or authorization[: len(SCHEME)].lower() != SCHEME:
            raise refused(f"{self._wanted} is needed", limit="Bearer KEY")
        secret = authorization[len(SCHEME) :].strip()
        if self._tokens and secret.count(".") == TOKEN_DOTS:
            caller = self._of_token(self._tokens.tenant(secret))
        else:
            caller = self._of_key(secret)
        if TENANT_KEY in given and given[TENANT_KEY] != caller.tenant:
            raise PermissionDenied("this key is another tenant's", field=TENANT_KEY, limit=caller.tenant)
        return caller

    @property
    def _wanted(self) -> str:
        return "an API key" if self._tokens is None else "a token" if self._path is None else "an API key or a token"

    def _of_key(self, key: str) -> Caller:
        caller = self._known.by_digest.get(digest(key))
        if caller is None:
            raise refused("this API key is not known", limit="a key in force")
        return caller

    def _of_token(self, name: str) -> Caller:
        caller = self._known.by_name.get(name)
        if caller is None:
            if self._settings is None or self._settings.known_only:
                raise PermissionDenied("this token's tenant is not known here", field=AUTHORIZATION)
            return Caller(name, self._default)
        return caller

    def reload(self) -> None:
        """Reads the file where it has changed."""
        if self._path is None or (seen := _version(self._path)) == self._seen:
            return
        self._seen = seen
        try:
            self._known = self._read(self._path)
        except ConfigError as error:
            log.error("the keys read before stay in force: %s", error.message)
        else:
            log.info("%s was read again: %d keys", self._path, len(self._known.by_digest))

    def _read(self, path: Path) -> KnownCallers:
        return read_callers(path, self._default, keyless=self._settings is not None)

    async def watch(self) -> None:
        """Reloads for as long as it runs; returns at once without a file and without tokens."""
        async with asyncio.TaskGroup() as tasks:
            if self._path is not None:
                tasks.create_task(self._watch_file(), name="keys")
            if self._keys is not None:
                tasks.create_task(self._keys.watch(), name="jwks")

    async def _watch_file(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.reload)


def _tokens(settings: TokenSettings) -> "tuple[Tokens, KeySet]":
    try:
        from headrace.gateway.tenants.jwks import KeySet
        from headrace.gateway.tenants.token import Tokens
    except ImportError as error:
        raise ConfigError(f"tenants.tokens: pip install 'headrace[gateway]' ({error})") from error
    keys = KeySet(settings)
    return Tokens(settings, keys), keys


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
