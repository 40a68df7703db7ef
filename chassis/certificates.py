"""A process's certificate, its key and whom it trusts: read from files, checked, and read again when they change.

What is read is only taken where all of it fits together, so files that are replaced one after the other are seen as
they were until the last of them is there.
"""

import logging
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.chassis.config import TlsSettings
from headrace.core.errors import ConfigError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Files are looked at this often at most; a change counts for handshakes after that."""

_Version = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Pem:
    """Contents of the files, b'' for one that there is none of. `certificate` and `key` are both there or neither."""

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)


class Certificates:
    """Of one process in one role. From any thread. Raises ConfigError at once where a file is missing or unsound."""

    def __init__(self, settings: TlsSettings, *, server: bool) -> None:
        self.domain = settings.domain
        self._paths = paths(settings, server=server)
        self._lock = threading.Lock()
        self._seen = self._versions()
        self._looked = time.monotonic()
        self._pem = read(self._paths)

    def current(self) -> Pem:
        """As the files are now, or were when last they fitted together; the same object until they change."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= LOOK_S:
                self._looked = now
                self._look()
            return self._pem

    def _look(self) -> None:
        seen = self._versions()
        if seen == self._seen:
            return
        try:
            pem = read(self._paths)
        except ConfigError as error:
            log.error("the certificates read before stay in force: %s", error.message)
            return  # and are looked at again: half of a rotation may be there
        self._seen = seen
        if pem != self._pem:
            self._pem = pem
            log.info("new certificates: %s", ", ".join(map(str, self._paths.values())))

    def _versions(self) -> tuple[_Version, ...]:
        return tuple(map(_version, self._paths.values()))


def paths(settings: TlsSettings, *, server: bool) -> Mapping[str, Path]:
    """Where `ca`, `certificate` and `key` are. Raises ConfigError where a server would have to do without one."""
    found = {"ca": settings.ca, "certificate": settings.certificate, "key": settings.key}
    if settings.dir is not None:
        stem = settings.role if (settings.dir / f"{settings.role}.crt").exists() else "tls"
        defaults = {"ca": "ca.crt", "certificate": f"{stem}.crt", "key": f"{stem}.key"}
        for name, file in defaults.items():
            # a caller may have no certificate; one that is named must be there
            if found[name] is None and (server or name == "ca" or (settings.dir / f"{stem}.crt").exists()):
                found[name] = settings.dir / file
    if (found["certificate"] is None) != (found["key"] is None):
        raise ConfigError("transport.tls: certificate and key go together", field="transport.tls")
    if server and not settings.domain:
        raise ConfigError("transport.tls.domain: a server needs one to know its callers", field="transport.tls.domain")
    if server and None in found.values():
        missing = ", ".join(name for name, path in found.items() if path is None)
        raise ConfigError(f"transport.tls: a server needs dir, or {missing} too", field="transport.tls")
    return {name: path for name, path in found.items() if path is not None}


def read(files: Mapping[str, Path]) -> Pem:
    """What stands in them. Raises ConfigError that names the file, where they do not fit together too."""
    contents = {}
    for name, path in files.items():
        try:
            contents[name] = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"transport.tls.{name}: {path}: {error.strerror}", field=f"transport.tls.{name}"
            ) from None
    pem = Pem(**contents)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if "ca" in files:
        try:
            context.load_verify_locations(cadata=pem.ca.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                f"transport.tls.ca: {files['ca']} has no PEM certificates", field="transport.tls.ca"
            ) from None
    if "certificate" in files:
        check_pair(context, files["certificate"], files["key"])
        if (files["certificate"].read_bytes(), files["key"].read_bytes()) != (pem.certificate, pem.key):
            raise ConfigError(f"transport.tls.certificate: {files['certificate']} is being replaced")
    return pem


def check_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Loads both. Raises ConfigError where they are no PEM, the key is locked, or it is not the certificate's."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or str(error) or "no PEM"
        raise ConfigError(
            f"transport.tls.certificate: {certificate} and {key} do not go together: {reason}",
            field="transport.tls.certificate",
        ) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _version(path: Path) -> _Version:
    """Changes with the file; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
