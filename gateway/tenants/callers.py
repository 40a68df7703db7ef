"""Who a call comes from: by its API key where there is a file of keys, else by what its metadata says.

The file is looked at once a second and read again when it has changed. A faulty one is logged, and what was read
before stays in force.
"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from headrace.chassis.config import TenantsSettings
from headrace.core.errors import ConfigError, PermissionDenied, Unauthenticated
from headrace.gateway.codec import TENANT_KEY, tenant
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.key import digest
from headrace.gateway.tenants.key_file import read_callers

log = logging.getLogger(__name__)

LOOK_S = 1.0
AUTHORIZATION = "authorization"
SCHEME = "bearer "

Metadata = Iterable[tuple[str, str | bytes]]


class Callers:
    """Raises ConfigError at once where the file is faulty."""

    def __init__(self, settings: TenantsSettings) -> None:
        self._default = settings.default
        self._path = settings.keys_file
        self._seen = _version(self._path) if self._path else None
        self._by_digest = read_callers(self._path, self._default) if self._path else {}

    def caller(self, metadata: Metadata) -> Caller:
        """Raises Unauthenticated without a known key, PermissionDenied for another tenant's name, InvalidRequest."""
        if self._path is None:
            return Caller(tenant(metadata), self._default)
        given = dict(metadata)
        authorization = given.get(AUTHORIZATION, "")
        if not isinstance(authorization, str) or authorization[: len(SCHEME)].lower() != SCHEME:
            raise Unauthenticated("an API key is needed", field=AUTHORIZATION, limit="Bearer KEY")
        caller = self._by_digest.get(digest(authorization[len(SCHEME) :].strip()))
        if caller is None:
            raise Unauthenticated("this API key is not known", field=AUTHORIZATION, limit="a key in force")
        if TENANT_KEY in given and given[TENANT_KEY] != caller.tenant:
            raise PermissionDenied("this key is another tenant's", field=TENANT_KEY, limit=caller.tenant)
        return caller

    def reload(self) -> None:
        """Reads the file where it has changed."""
        if self._path is None or (seen := _version(self._path)) == self._seen:
            return
        self._seen = seen
        try:
            self._by_digest = read_callers(self._path, self._default)
        except ConfigError as error:
            log.error("the keys read before stay in force: %s", error.message)
        else:
            log.info("%s was read again: %d keys", self._path, len(self._by_digest))

    async def watch(self) -> None:
        """Reloads for as long as it runs; returns at once without a file."""
        while self._path is not None:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.reload)


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
