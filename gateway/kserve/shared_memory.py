"""System shared memory that callers have registered: regions of POSIX objects whose names begin as the settings say.

Off without such a beginning. Data is copied in and out through the file, never mapped: a caller who shrinks an object
under a mapping would take the process down with it.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.core.errors import InvalidRequest, NotFound, Unsupported

FOLDER = "/dev/shm"
MAX_REGIONS = 256
MAX_NAME_CHARS = 128
_KEY = re.compile(r"/?([A-Za-z0-9._-]{1,128})")


@dataclass(frozen=True, slots=True)
class Region:
    """`byte_size` bytes from `offset` of the object `key`, open as `descriptor`."""

    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: int


class Regions:
    """Each tenant's, by name. One event loop owns it."""

    def __init__(self, prefix: str, max_bytes: int) -> None:
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._regions: dict[tuple[str, str], Region] = {}

    def register(self, tenant: str, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises Unsupported where shared memory is off, NotFound without such an object, InvalidRequest."""
        if not self._prefix:
            raise Unsupported(
                "shared memory is off here: kserve.shared_memory_prefix is not set", field="kserve.shared_memory_prefix"
            )
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise InvalidRequest(
                f"name has {len(name)} characters", field="name", limit=f"1..{MAX_NAME_CHARS} characters"
            )
        if (tenant, name) in self._regions:
            raise InvalidRequest("a region of this name is registered", field="name", limit="each name once")
        if len(self._regions) >= MAX_REGIONS:
            raise InvalidRequest(f"{MAX_REGIONS} regions are registered", field="name", limit=f"{MAX_REGIONS} regions")
        parsed = _KEY.fullmatch(key)
        if parsed is None or not parsed[1].startswith(self._prefix):
            limit = f"a plain name that begins with {self._prefix}"
            raise InvalidRequest(f"key must be {limit}", field="key", limit=limit)
        if byte_size == 0:
            raise InvalidRequest("byte_size is 0, must be 1 at least", field="byte_size", limit="1 byte at least")
        descriptor = _open(parsed[1], offset + byte_size)
        self._regions[tenant, name] = Region(name, key, offset, byte_size, descriptor)

    def unregister(self, tenant: str, name: str) -> None:
        """'' for all of the tenant's; a name that is not registered is none."""
        for owner, known in [each for each in self._regions if each[0] == tenant and name in ("", each[1])]:
            os.close(self._regions.pop((owner, known)).descriptor)

    def status(self, tenant: str, name: str) -> Mapping[str, Region]:
        """By name; '' for all of the tenant's. Raises NotFound."""
        if name:
            return {name: self._region(tenant, name, "name")}
        return {region.name: region for (owner, _), region in self._regions.items() if owner == tenant}

    def read(self, tenant: str, name: str, offset: int, byte_size: int, field: str) -> bytes:
        """The bytes of tensor `field`. Raises NotFound, InvalidRequest."""
        region = self._stretch(tenant, name, offset, byte_size, field)
        data = os.pread(region.descriptor, byte_size, region.offset + offset)
        if len(data) < byte_size:
            raise InvalidRequest(
                f"{field} ends after {len(data)} bytes: its object has shrunk", field=field, limit=f"{byte_size} bytes"
            )
        return data

    def write(self, tenant: str, name: str, offset: int, byte_size: int, field: str, data: bytes) -> None:
        """Raises NotFound, and InvalidRequest where `data` has more than `byte_size` bytes."""
        region = self._stretch(tenant, name, offset, byte_size, field)
        if len(data) > byte_size:
            raise InvalidRequest(
                f"{field} takes {len(data)} bytes, its place has {byte_size}", field=field, limit=f"{len(data)} bytes"
            )
        try:
            os.pwrite(region.descriptor, data, region.offset + offset)
        except OSError as error:
            raise InvalidRequest(f"{field} cannot be written: {error.strerror}", field=field) from error

    def close(self) -> None:
        while self._regions:
            os.close(self._regions.popitem()[1].descriptor)

    def _stretch(self, tenant: str, name: str, offset: int, byte_size: int, field: str) -> Region:
        region = self._region(tenant, name, field)
        highest = min(region.byte_size, self._max_bytes)
        if byte_size > highest or offset + byte_size > region.byte_size:
            raise InvalidRequest(
                f"{field} is outside its region: {byte_size} bytes at {offset}",
                field=field,
                limit=f"{highest} bytes, within the region's {region.byte_size}",
            )
        return region

    def _region(self, tenant: str, name: str, field: str) -> Region:
        region = self._regions.get((tenant, name))
        if region is None:
            raise NotFound(f"{field}: no region {name[:MAX_NAME_CHARS]!r} is registered", field=field)
        return region


@contextmanager
def open_regions(prefix: str, max_bytes: int) -> Iterator[Regions]:
    """None at first; whatever is registered is let go when the block ends. `max_bytes` bounds a tensor."""
    regions = Regions(prefix, max_bytes)
    try:
        yield regions
    finally:
        regions.close()


def _open(name: str, least_bytes: int) -> int:
    try:
        descriptor = os.open(f"{FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotFound(f"key {name!r} cannot be opened: {error.strerror}", field="key") from error
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_size < least_bytes:
        os.close(descriptor)
        raise InvalidRequest(
            f"the region ends at byte {least_bytes}, its object has {state.st_size}",
            field="byte_size",
            limit=f"{state.st_size} bytes with offset",
        )
    return descriptor
